/** What goes wrong, one thing after the other, with quiet times between. */
import { Redis } from 'ioredis';
import type { Member } from './crew.js';
import { timeNow } from './history.js';
import type { Fault } from './history.js';
import { Random } from './random.js';

/** About as many as there is time for. */
const DEEDS_PER_ROUND = 9;

/** What the nemesis can lay its hands on. */
export interface Victims {
  readonly members: () => readonly Member[];
  /** In the place of one that is gone. */
  replace(member: Member): Promise<void>;
  readonly url: string;
  /** Kills the server without notice, and starts it again with what it has on disk. */
  restartRedis(): Promise<void>;
  readonly network: { delay(ms: number): void; cut(): void };
  readonly resources: readonly string[];
  readonly prefix: string;
}

type Deed = (victims: Victims, random: Random, redis: Redis) => Promise<{ resource: string } | void>;

const DEEDS: Readonly<Record<string, Deed>> = {
  async SIGKILL({ members, replace }, random) {
    const member = random.pick(members());
    await member.kill();
    await replace(member);
  },
  async SIGSTOP({ members }, random) {
    const member = random.pick(members());
    member.freeze();
    await pause(random.between(500, 2_500));
    member.thaw();
  },
  async 'CLIENT KILL'(_, random, redis) {
    await redis.call('CLIENT', 'KILL', 'TYPE', random.pick(['normal', 'pubsub']), 'SKIPME', 'yes');
  },
  async 'CLIENT PAUSE'(_, random, redis) {
    const ms = random.between(50, 1_500);
    await redis.call('CLIENT', 'PAUSE', ms, random.pick(['ALL', 'WRITE']));
    await pause(ms);
  },
  async 'network cut'({ network }) {
    network.cut();
  },
  async 'network delay'({ network }, random) {
    network.delay(random.between(1, 60));
    await pause(random.between(200, 1_500));
    network.delay(0);
  },
  async 'network silence'({ network }, random) {
    network.delay(random.between(500, 2_000));
    await pause(random.between(200, 1_500));
    network.delay(0);
    network.cut();
  },
  async 'SCRIPT FLUSH'(_victims, _random, redis) {
    await redis.script('FLUSH');
  },
  async 'Redis restart'({ restartRedis }) {
    await restartRedis();
  },
  async 'blocked event loop'({ members }, random) {
    const ms = random.between(300, 1_800);
    random.pick(members()).give({ order: 'block', ms });
    await pause(ms);
  },
  async 'clock skew'({ members }, random) {
    const member = random.pick(members());
    member.give({ order: 'skew', ms: random.between(-60_000, 60_000) });
    await pause(random.between(100, 1_500));
    member.give({ order: 'skew', ms: 0 });
  },
  async 'key deleted'({ resources, prefix }, random, redis) {
    const resource = random.pick(resources);
    for (let times = 0; times < 30; times += 1) {
      await redis.del(`${prefix}:{${resource}}`);
      await pause(random.between(2, 25));
    }
    return { resource };
  },
};

/** Long enough for order to show, which a fault disturbs for a while. */
const QUIET = 4_500;

/**
 * Does its deeds until the time is over, after a quiet time. Each comes as often as any other, in an order that the seed
 * decides, from where the round before has left off, more or less.
 */
export async function rage(victims: Victims, seed: number, round: number, until: number): Promise<Fault[]> {
  const faults: Fault[] = [];
  const redis = new Redis(victims.url, { disconnectTimeout: 0 });
  redis.on('error', () => undefined); // some of it is its own doing; its commands reject as well
  const kinds = new Random(seed).shuffled(Object.keys(DEEDS));
  const random = new Random(seed * 1_000 + round);
  try {
    await pause(QUIET);
    for (let turn = round * DEEDS_PER_ROUND; timeNow() < until; turn += 1) {
      const kind = kinds[turn % kinds.length] as string;
      const from = timeNow();
      const done = await (DEEDS[kind] as Deed)(victims, random, redis);
      faults.push({ kind, from, to: timeNow(), ...done });
      await pause(random.between(20, 600));
    }
    return faults;
  } finally {
    redis.disconnect();
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
