/** What goes wrong, one thing after the other, with quiet times between. */
import type { Redis } from 'ioredis';
import type { Connection, Direction } from '../support/delay-proxy.js';
import type { Member } from './crew.js';
import { forge } from './forger.js';
import { timeNow } from './history.js';
import type { Fault } from './history.js';
import { Random } from './random.js';
import type { Scene } from './scenes.js';

/** About as many as there is time for. */
const DEEDS_PER_ROUND = 9;

/** What the nemesis can lay its hands on. */
export interface Victims {
  readonly members: () => readonly Member[];
  /** In the place of one that is gone. */
  replace(member: Member): Promise<void>;
  readonly redis: {
    /** Of the primary. */
    readonly url: string;
    readonly admin: Redis;
    /** Kills the server without notice, and starts it again with what it has on disk. */
    restart(): Promise<void>;
  };
  /** Makes another server the primary, and leads new connections there. */
  failOver(): Promise<void>;
  readonly network: {
    delay(ms: number): void;
    hold(towards: Direction, ms: number, isChosen: (connection: Connection) => boolean): () => void;
    cut(): void;
  };
  readonly resources: readonly string[];
  readonly prefix: string;
}

type Deed = (victims: Victims, random: Random) => Promise<{ resource: string } | void>;

const DEEDS = {
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
  async 'CLIENT KILL'({ redis }, random) {
    await redis.admin.call('CLIENT', 'KILL', 'TYPE', random.pick(['normal', 'pubsub']), 'SKIPME', 'yes');
  },
  async 'CLIENT PAUSE'({ redis }, random) {
    const ms = random.between(50, 1_500);
    await redis.admin.call('CLIENT', 'PAUSE', ms, random.pick(['ALL', 'WRITE']));
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
  async 'late requests'({ network, redis }, random) {
    const ms = random.between(150, 2_000);
    const release = network.hold('server', ms, () => random.next() < 0.6);
    if (random.next() < 0.4) {
      await pause(random.between(0, ms));
      await redis.admin.script('FLUSH');
    }
    await pause(random.between(200, 1_500));
    release();
    await pause(ms); // until the last of them has arrived
  },
  async 'late answers'({ network }, random) {
    const ms = random.between(100, 1_000);
    // Those to commits alone are in no order with any others.
    const only = random.pick(['commits', 'commits', 'any']);
    const release = network.hold('client', ms, ({ hasCommits }) =>
      only === 'commits' ? hasCommits : random.next() < 0.4,
    );
    await pause(random.between(300, 1_500));
    release();
    await pause(ms);
  },
  async 'SCRIPT FLUSH'({ redis }) {
    await redis.admin.script('FLUSH');
  },
  async 'Redis restart'({ redis }) {
    await redis.restart();
  },
  async failover({ failOver }) {
    await failOver();
  },
  async 'forged messages'({ redis, prefix }, random) {
    await forge(redis.url, prefix, random, random.between(500, 2_000), async () => {
      // The longer Redis takes to answer, the longer a lie is believed.
      await redis.admin.call('CLIENT', 'PAUSE', random.between(5, 80), 'ALL');
    });
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
  async 'key deleted'({ redis, resources, prefix }, random) {
    const resource = random.pick(resources);
    for (let times = 0; times < 30; times += 1) {
      await redis.admin.del(`${prefix}:{${resource}}`);
      await pause(random.between(2, 25));
    }
    return { resource };
  },
} satisfies Record<string, Deed>;

export type DeedName = keyof typeof DEEDS;

/**
 * Does the deeds of the scene until the time is over, after a quiet time. Each comes as often as any other, in an order
 * that the seed decides, from where the round before has left off, more or less.
 */
export async function rage(
  victims: Victims,
  { deeds, quiet, pauses }: Scene,
  seed: number,
  round: number,
  until: number,
): Promise<Fault[]> {
  const faults: Fault[] = [];
  const kinds = new Random(seed).shuffled(deeds ?? (Object.keys(DEEDS) as DeedName[]));
  const random = new Random(seed * 1_000 + round);
  const untilThen = (ms: number) => pause(Math.min(ms, Math.ceil(until - timeNow()) + 1)); // timers may be early
  await untilThen(kinds.length > 0 ? quiet : Infinity);
  for (let turn = round * DEEDS_PER_ROUND; timeNow() < until; turn += 1) {
    const kind = kinds[turn % kinds.length] as DeedName;
    const from = timeNow();
    const deed: Deed = DEEDS[kind];
    const done = await deed(victims, random);
    faults.push({ kind, from, to: timeNow(), ...done });
    await untilThen(random.between(...pauses));
  }
  return faults;
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
