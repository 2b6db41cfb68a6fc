/** Work inside of a lock that goes on side by side. */
import type { Lock, LockContext } from '../../lib/index.js';
import type { Entry } from './history.js';
import { dataKeys, pause, told } from './setting.js';
import type { Setting } from './setting.js';

/** ms, of which a third must be enough for a renewal on a busy machine. */
const TTL = 1_000;

/** Work that starts others of the same lock, each in a way of its own: they take turns, or are refused. */
export async function siblings(setting: Setting, call: string, wanted: readonly string[]): Promise<void> {
  const { locks, random, recorder } = setting;
  const [resource = ''] = wanted;
  const stay = async (visitor: string, lock: Lock) => {
    recorder.inside(call, visitor, lock);
    await pause(random.between(0, 8));
    recorder.inside(call, visitor, lock);
  };
  const ways = {
    acquire: (visitor: string) => useLock(locks.acquire(resource, { wait: 500 }), visitor),
    tryAcquire: (visitor: string) => useLock(locks.tryAcquire(resource), visitor),
    withLock: (visitor: string) => locks.withLock(resource, { wait: 500 }, ({ lock }) => stay(visitor, lock)),
  };
  const useLock = async (asked: Promise<Lock | null>, visitor: string) => {
    const lock = await asked;
    if (lock === null) return;
    try {
      await stay(visitor, lock);
    } finally {
      await lock.release();
    }
  };
  const work = async (context: LockContext) => {
    recorder.held(call, context.lock);
    const chosen = Array.from({ length: random.between(2, 4) }, () =>
      random.pick(Object.keys(ways) as (keyof typeof ways)[]),
    );
    // That one is refused is as good: what it may not do is be there as well.
    await Promise.allSettled(chosen.map((way, i) => ways[way](`${i}, by ${way}`)));
    queueEntry(setting, context, resource, `${call}/end`);
    recorder.held(call, context.lock);
  };
  await told(recorder, call, `${call}/end`, locks.withLock(wanted, { wait: Infinity, retries: 0 }, work));
}

/** Work that commits what it has all the time, without waiting for the commit before. */
export async function overlappingCommits(
  setting: Setting,
  call: string,
  wanted: readonly string[],
): Promise<void> {
  const { locks, random, recorder } = setting;
  const [resource = ''] = wanted;
  const work = async (context: LockContext) => {
    const end = performance.now() + 2.5 * TTL;
    let commits = 0;
    const again = async () => {
      while (performance.now() < end) {
        recorder.held(call, context.lock);
        const commit = `${call}/${(commits += 1)}`;
        queueEntry(setting, context, resource, commit);
        await told(recorder, call, commit, context.commit());
      }
    };
    await Promise.all(Array.from({ length: random.between(2, 4) }, again));
    recorder.held(call, context.lock);
  };
  await locks.withLock(wanted, { wait: Infinity, ttl: TTL, retries: 0 }, work);
}

/** Of work that leaves the value as it is. */
function queueEntry(
  { prefix }: Setting,
  { lock, multi }: LockContext,
  resource: string,
  commit: string,
): void {
  const entry: Entry = { commit, fencingToken: lock.fencingTokens.get(resource) ?? 0 };
  multi.rpush(dataKeys(prefix, resource).entries, JSON.stringify(entry));
}
