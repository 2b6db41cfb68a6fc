/** What applications do with locks, at random: everything that the guarantees speak of. */
import { LockError } from '../../lib/index.js';
import type { AcquireOptions, LockContext, LockService } from '../../lib/index.js';
import type { Entry } from './history.js';
import { overlappingCommits, siblings } from './inside.js';
import type { Random } from './random.js';
import type { Recorder } from './recorder.js';
import { dataKeys, pause, told } from './setting.js';
import type { Setting } from './setting.js';
import { keepFor, stretch } from './stretching.js';

/** Each as often as its number says, beside the others. */
export const KINDS = {
  update: 50,
  twice: 8,
  watch: 8,
  hold: 13,
  long: 1,
  impatient: 8,
  abort: 4,
  at_once: 4,
  pair: 4,
  brief: 0, // their leases are too short for a busy machine, and cost others of their process their places
  slow: 0.05,
  several: 2,
  stretch: 0.03,
  min_hold: 0.02,
  siblings: 2,
  overlap: 0.01,
};

export type Kind = keyof typeof KINDS;
export type Kinds = Readonly<Partial<Record<Kind, number>>>;

/** Longest time that work takes, ms. */
const LONGEST_WORK = 6;
const SHORT_TTL = 150;
/** ms a lease lasts whose holder waits for a further lock with it. */
const PATIENT_TTL = 2_000;

/** One call. Never rejects: what it was told is recorded. */
export async function callOnce(setting: Setting, resources: readonly string[], kinds: Kinds): Promise<void> {
  const { random, recorder, redis, prefix } = setting;
  const kind = random.weighted(kinds);
  const wanted = wantedBy(kind, random, resources);
  if (kind === 'watch' && random.next() < 0.3) {
    await redis.incr(dataKeys(prefix, wanted[0] ?? '').watched).catch(() => undefined); // it matters to nobody
  }
  const call = recorder.asked(wanted);
  try {
    if (kind === 'long') await holdLong(setting, call, wanted, SHORT_TTL, 2 * SHORT_TTL);
    else if (kind === 'slow') await holdLong(setting, call, wanted, PATIENT_TTL, random.between(200, 700));
    else if (kind === 'hold' || kind === 'at_once') await hold(setting, call, wanted, kind === 'at_once');
    else if (kind === 'stretch') await stretch(setting, call, wanted);
    else if (kind === 'min_hold') await keepFor(setting, call, wanted);
    else if (kind === 'siblings') await siblings(setting, call, wanted);
    else if (kind === 'overlap') await overlappingCommits(setting, call, wanted);
    else await update(setting, call, wanted, kind);
    recorder.ended(call, 'done');
  } catch (error) {
    recorder.ended(call, error instanceof LockError ? error.code : String(error));
  }
}

function wantedBy(kind: Kind, random: Random, resources: readonly string[]): readonly string[] {
  if (kind === 'pair') return resources.slice(0, 2);
  // Under the first of what others want together, there are commits all the time; the second one takes its time.
  const first = 2 * random.between(0, Math.ceil(resources.length / 2) - 1);
  const second = (first + 1) % resources.length;
  const chosen = { brief: [first], slow: [second], several: [first, second] }[kind as string];
  if (chosen) return resources.filter((_, i) => chosen.includes(i));
  return [random.pick(resources)];
}

async function hold(
  { locks, random, recorder }: Setting,
  call: string,
  wanted: readonly string[],
  atOnce: boolean,
): Promise<void> {
  const asked = atOnce ? locks.tryAcquire(wanted) : locks.acquire(wanted, { wait: Infinity });
  if (!atOnce) noteQueued(locks, recorder, call);
  const lock = await asked;
  if (lock === null) return;
  recorder.held(call, lock);
  await pause(random.between(0, LONGEST_WORK));
  if (random.next() < 0.2) await lock.extend(random.between(500, 1_500)).catch(() => undefined); // it is lost, then
  recorder.held(call, lock);
  await lock.release();
}

/** Also for longer than its ttl: then it has to be renewed. */
async function holdLong(
  { locks, recorder }: Setting,
  call: string,
  wanted: readonly string[],
  ttl: number,
  ms: number,
): Promise<void> {
  const lock = await locks.acquire(wanted, { wait: Infinity, ttl });
  const end = performance.now() + ms;
  while (performance.now() < end && lock.held) {
    recorder.held(call, lock);
    await pause(SHORT_TTL / 10);
  }
  recorder.held(call, lock);
  await lock.release();
}

async function update(
  { locks, random, recorder, prefix }: Setting,
  call: string,
  wanted: readonly string[],
  kind: Kind,
): Promise<void> {
  const abort = new AbortController();
  const options: AcquireOptions = {
    wait: kind === 'impatient' ? random.between(1, 100) : Infinity,
    ...(kind === 'abort' ? { signal: abort.signal } : {}),
    ...(kind === 'brief' ? { ttl: random.between(SHORT_TTL / 2, SHORT_TTL) } : {}),
    ...(kind === 'several' ? { ttl: PATIENT_TTL } : {}),
  };
  if (kind === 'abort') setTimeout(() => abort.abort(), random.between(0, 40));
  let runs = 0;
  const work = async (context: LockContext) => {
    runs += 1;
    const { lock, redis, multi } = context;
    recorder.held(call, lock);
    const keys = dataKeys(prefix, wanted[0] ?? '');
    if (kind === 'watch') {
      await context.watch(keys.watched);
      await redis.get(keys.watched);
    }
    let read = Number((await redis.get(keys.value)) ?? 0);
    await pause(random.between(0, LONGEST_WORK));
    const queue = (commit: string) => {
      const fencingToken = lock.fencingTokens.get(wanted[0] ?? '') ?? 0;
      const entry: Entry = { commit, fencingToken, read };
      multi.set(keys.value, read + 1);
      multi.rpush(keys.entries, JSON.stringify(entry));
    };
    if (kind === 'twice') {
      const commit = `${call}/${runs}`;
      queue(commit);
      await told(recorder, call, commit, context.commit());
      read += 1;
    }
    queue(`${call}/end`);
    recorder.held(call, lock);
  };
  const ended = locks.withLock(wanted, options, work);
  if (kind !== 'brief') noteQueued(locks, recorder, call);
  await told(recorder, call, `${call}/end`, ended);
}

/** Its answer comes after that to the wish to wait, which was asked for on the same connection before. */
function noteQueued(locks: LockService, recorder: Recorder, call: string): void {
  setImmediate(() => {
    locks.inspect('nothing').then(
      () => recorder.queued(call),
      () => undefined, // then it is not known
    );
  });
}
