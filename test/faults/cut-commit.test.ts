import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockError } from '../../lib/index.js';
import type { LockContext } from '../../lib/index.js';
import { commandEnds, startFaultProxy } from '../support/fault-proxy.js';
import type { Fault, FaultProxy } from '../support/fault-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** Numbers from 0 to 1 that are the same in every run. */
function numbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 2 ** 32;
    return state / 2 ** 32;
  };
}

/** WATCH, EVAL, MULTI, BLPOP, EVAL, HSET, EVALSHA, three commands of the work, EXEC. */
const COMMANDS = 11;

describe('a transfer whose commit is hit', () => {
  let proxy: FaultProxy;
  let one: LockApplication;
  let transfers = 0;

  beforeAll(async () => {
    proxy = await startFaultProxy(sharedRedisUrl());
    one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, commandTimeout: 150 });
    await one.locks.withLock('warm', ({ multi }) => multi.mset({ [one.key('a')]: 1_000, [one.key('b')]: 0 }));
  });
  afterAll(async () => {
    await one.close();
    await proxy.close();
  });

  /**
   * Transfers 1 from a to b while the fault happens, and looks at the data: whole or absent, and as the call said.
   *
   * @returns what the call came to
   */
  async function transfer(fault: Omit<Fault, 'word'>, retries: number, watching = false): Promise<string> {
    const id = (transfers += 1);
    const [a, b, done] = [one.key('a'), one.key('b'), one.key(`transfer:${id}`)];
    const before = (await one.redis.mget(a, b)).map(Number);
    let said: string;
    try {
      await one.locks.withLock(
        'transfer',
        { retries, wait: 2_000 },
        async ({ multi, watch }: LockContext) => {
          if (watching) await watch(a);
          multi.decr(a).incr(b).incr(done);
          if (transfers === id && !armedFor.has(id)) proxy.arm({ ...fault, word: done }); // in the commit alone
          armedFor.add(id);
        },
      );
      said = 'committed';
    } catch (error) {
      if (!(error instanceof LockError)) throw error;
      said = error.code;
    }
    expect(proxy.fired()).toBe(true);
    const [isA, isB, times] = (await one.redis.mget(a, b, done)).map(Number);
    const moved = said === 'committed' ? 1 : 0;
    const how = `${said} after ${fault.how} in the ${fault.side}`;
    expect([how, isA, isB, times]).toEqual([how, (before[0] ?? 0) - moved, (before[1] ?? 0) + moved, moved]);
    return said;
  }
  const armedFor = new Set<number>();
  const atCommand = (command: number) => (sent: Buffer) =>
    command === 0 ? 0 : (commandEnds(sent)[command - 1] ?? sent.length);

  describe.each(['cut', 'drop', 'split', 'delay'] as const)('by a %s', (how) => {
    it('behind any command is whole or absent, as the call says', async () => {
      const said: string[] = [];
      for (let command = 0; command <= COMMANDS; command += 1) {
        said.push(await transfer({ side: 'request', at: atCommand(command), how }, 0));
      }
      // What reached Redis whole is committed, also if nobody heard the answer; the rest never happened.
      const passes = how === 'split' || how === 'delay';
      const expected = Array.from({ length: COMMANDS }, () => (passes ? 'committed' : 'LOCK_LOST'));
      expect(said).toEqual([...expected, 'committed']);
    });

    it('behind any command is committed once when it may run again', async () => {
      for (let command = 0; command <= COMMANDS; command += 1) {
        expect(await transfer({ side: 'request', at: atCommand(command), how }, 3)).toBe('committed');
      }
    });
  });

  it('before its answer is there is committed', async () => {
    for (const how of ['cut', 'drop', 'split', 'delay'] as const) {
      expect(await transfer({ side: 'reply', at: () => 0, how }, 0)).toBe('committed');
    }
  });

  it('at 200 bytes chosen at random, of the request or the answer, is whole or absent, as the call says', async () => {
    const random = numbers(7);
    const said: Record<string, number> = {};
    for (let i = 0; i < 200; i += 1) {
      const share = random();
      const outcome = await transfer(
        {
          side: random() < 0.6 ? 'request' : 'reply',
          at: (sent) => Math.floor(share * sent.length),
          how: random() < 0.7 ? 'cut' : 'split',
        },
        i % 2,
      );
      if (i % 2 === 1) expect(outcome).toBe('committed'); // it may run again
      said[outcome] = (said[outcome] ?? 0) + 1;
    }
    expect(Object.keys(said).sort()).toEqual(['LOCK_LOST', 'committed']);
    expect(Math.min(...Object.values(said))).toBeGreaterThan(10);
  });

  it('while it watches a key, behind any command, is whole or absent, as the call says', async () => {
    const random = numbers(8);
    const said: Record<string, number> = {};
    for (const how of ['cut', 'drop', 'split'] as const) {
      for (let i = 0; i < 15; i += 1) {
        const share = random();
        const outcome = await transfer(
          { side: 'request', at: (sent) => Math.floor(share * sent.length), how },
          i % 2,
          true,
        );
        said[outcome] = (said[outcome] ?? 0) + 1;
      }
    }
    expect(said['LOCK_OUTCOME_UNKNOWN']).toBeUndefined();
    expect(Object.keys(said)).toContain('committed');
  });
});
