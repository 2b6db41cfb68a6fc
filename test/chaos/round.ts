/** One round: a crew at work on resources of its own, a nemesis, and a check of what came of it. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import type { DelayProxy } from '../support/delay-proxy.js';
import { check } from './checker.js';
import type { Violation } from './checker.js';
import { Member } from './crew.js';
import { readEvents, timeNow } from './history.js';
import type { Entry, Event, Fault, History, Ledger } from './history.js';
import { rage } from './nemesis.js';
import type { WorkerOptions } from './worker.js';
import { Random } from './random.js';
import type { ChaosRedis } from './chaos-redis.js';
import type { Scene } from './scenes.js';
import { dataKeys } from './setting.js';

const MEMBERS = 4;
const LOOPS = 6;
const RESOURCES = 3;
/** ms after which nothing of a killed process is left: its ttl, and what waits for it. */
const LEFTOVERS = 10_000;

export interface RoundOptions {
  readonly seed: number;
  readonly number: number;
  readonly ms: number;
  readonly scene: Scene;
  /** Folder with another build of the library. */
  readonly build?: string | undefined;
}

/** Where rounds take place, one after the other. */
export interface Stage {
  readonly redis: ChaosRedis;
  /** Lead to the primary: one as fast as can be, one by way of a network. */
  readonly endpoint: DelayProxy;
  readonly network: DelayProxy;
}

export interface RoundResult {
  readonly calls: number;
  readonly commits: number;
  readonly faults: readonly Fault[];
  /** ms */
  readonly longestWait: number;
  readonly violations: readonly Violation[];
  /** Where the history is, if promises were broken. */
  readonly history: string | undefined;
}

export async function playRound(
  { redis, endpoint, network }: Stage,
  options: RoundOptions,
): Promise<RoundResult> {
  const { seed, number, ms, scene, build } = options;
  const {
    kinds,
    commandTimeout,
    loops = LOOPS,
    members = MEMBERS,
    resources: count = RESOURCES,
    latency = 0,
  } = scene;
  const random = new Random(seed * 1_000 + number);
  const prefix = `chaos-${seed}-${number}`;
  const resources = Array.from({ length: count }, (_, i) => `r${i}`);
  const folder = await mkdtemp(join(tmpdir(), 'lock-history-'));
  let isKept = false;
  const all: Member[] = [];
  let crew: Member[] = [];
  const start = async (place: number) => {
    const name = `m${all.length}`;
    const isNear = scene.beyond === 'half' && place % 2 === 0;
    const options: WorkerOptions = {
      url: isNear ? endpoint.url : network.url,
      auditUrl: endpoint.url,
      prefix,
      name,
      history: join(folder, name),
      resources,
      loops,
      kinds,
      seed: random.between(0, 2 ** 30),
      ...(commandTimeout === undefined ? {} : { commandTimeout }),
    };
    const member = await Member.start(options, build);
    all.push(member);
    return member;
  };
  try {
    for (let place = 0; place < members; place += 1) crew.push(await start(place));
    const victims = {
      members: () => crew,
      async replace(member: Member) {
        const place = crew.indexOf(member);
        const next = await start(place);
        crew = crew.map((each) => (each === member ? next : each));
      },
      redis,
      async failOver() {
        await redis.failOver();
        for (const proxy of [endpoint, network]) proxy.leadTo(redis.url);
      },
      network,
      resources,
      prefix,
    };
    const until = timeNow() + ms;
    network.delay(latency);
    const faults = await rage(victims, scene, seed, number, until);
    const endings = await Promise.all(crew.map((member) => member.end()));
    const killed = all.filter(({ isKilled }) => isKilled).map(({ name }) => `${name}.`);
    const history: History = {
      events: all.flatMap(({ history: file }) => readEvents(file)),
      faults,
      ledgers: await readLedgers(redis.url, prefix, resources),
      isKilled: (call) => killed.some((name) => call.startsWith(name)),
    };
    const violations = check(history);
    for (const ending of endings) {
      if (ending !== undefined) violations.push({ rule: 'every call ends', message: ending });
    }
    const left = await leftovers(redis.url, prefix);
    if (left.length > 0)
      violations.push({ rule: 'every call ends', message: `left in Redis: ${left.join(', ')}` });
    isKept = process.env.KEEP !== undefined || (violations.length > 0 && build === undefined);
    if (isKept)
      await writeFile(join(folder, 'faults'), faults.map((fault) => `${JSON.stringify(fault)}\n`).join(''));
    return { ...summary(history), faults, violations, history: isKept ? folder : undefined };
  } finally {
    await Promise.all(all.filter(({ isKilled }) => !isKilled).map((member) => member.end()));
    network.delay(0);
    await redis.endReplica();
    if (!isKept) await rm(folder, { recursive: true, force: true });
  }
}

async function readLedgers(url: string, prefix: string, resources: readonly string[]): Promise<Ledger[]> {
  const redis = new Redis(url, { disconnectTimeout: 0 });
  try {
    return await Promise.all(
      resources.map(async (resource) => {
        const keys = dataKeys(prefix, resource);
        const entries = await redis.lrange(keys.entries, 0, -1);
        return {
          resource,
          value: Number((await redis.get(keys.value)) ?? 0),
          entries: entries.map((entry) => JSON.parse(entry) as Entry),
        };
      }),
    );
  } finally {
    redis.disconnect();
  }
}

/** Locks and waiters that are still there when everything must have run out; and takes all keys of the round away. */
async function leftovers(url: string, prefix: string): Promise<string[]> {
  const redis = new Redis(url, { disconnectTimeout: 0 });
  try {
    const deadline = timeNow() + LEFTOVERS;
    for (;;) {
      const keys = await redis.keys(`${prefix}:*`);
      const left = keys.filter(
        (key) => !key.startsWith(`${prefix}:data:`) && !key.startsWith(`${prefix}:fence:`),
      );
      if (left.length > 0 && timeNow() < deadline) {
        await new Promise((resolve) => setTimeout(resolve, 100));
        continue;
      }
      if (keys.length > 0) await redis.del(...keys);
      return left;
    }
  } finally {
    redis.disconnect();
  }
}

function summary({ events, ledgers }: History) {
  const asked = new Map<string, number>();
  let longestWait = 0;
  const isFirst = (event: Event): event is Extract<Event, { what: 'held' }> =>
    event.what === 'held' && asked.has(event.call);
  for (const event of events) {
    if (event.what === 'asked') asked.set(event.call, event.at);
    if (!isFirst(event)) continue;
    longestWait = Math.max(longestWait, event.at - (asked.get(event.call) ?? 0));
    asked.delete(event.call);
  }
  return {
    calls: events.filter(({ what }) => what === 'asked').length,
    commits: ledgers.reduce((sum, { entries }) => sum + entries.length, 0),
    longestWait,
  };
}
