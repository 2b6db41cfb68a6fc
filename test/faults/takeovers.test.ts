import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockLostError } from '../../lib/index.js';
import type { Lock } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

const ROUNDS = 50;

describe('a lock that is taken over between the work and its commit', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const ownerKey = (resource: string) => `${one.prefix}:{${resource}}`;
  const takeovers: [string, (resource: string) => Promise<Lock | undefined>][] = [
    ['by deletion', (resource) => other.redis.del(ownerKey(resource)).then(() => undefined)],
    [
      'by expiry',
      async (resource) => {
        await other.redis.pexpire(ownerKey(resource), 1);
        await eventually(async () => (await other.redis.exists(ownerKey(resource))) === 0);
        return undefined;
      },
    ],
    [
      'by overwriting',
      (resource) => other.redis.set(ownerKey(resource), 'an operator', 'PX', 2_000).then(() => undefined),
    ],
    [
      'by another owner',
      async (resource) => {
        await other.redis.del(ownerKey(resource));
        return other.locks.acquire(resource);
      },
    ],
  ];

  it.each(takeovers)(`${ROUNDS} times %s, has none of its commits applied`, async (how, takeOver) => {
    const outcomes = new Set<unknown>();
    for (let round = 0; round < ROUNDS; round += 1) {
      const resource = `taken ${how} ${round}`;
      let winner: Lock | undefined;
      const options = { retries: 0, autoExtend: round % 2 === 0 };
      await one.locks
        .withLock(resource, options, async ({ multi, watch }) => {
          if (round % 5 === 0) await watch(one.key('watched'));
          multi.incr(one.key('written by losers'));
          winner = await takeOver(resource);
        })
        .then(
          () => outcomes.add('committed'),
          (error: unknown) => outcomes.add(error instanceof LockLostError ? 'lost' : error),
        );
      const holder = await one.redis.get(ownerKey(resource));
      if (winner) expect(holder).toBe(winner.token); // what the winner has was left alone
      await winner?.release();
      await one.redis.del(ownerKey(resource));
    }
    expect([...outcomes]).toEqual(['lost']);
    expect(await one.redis.exists(one.key('written by losers'))).toBe(0);
  });

  it('in the very moment of the commit has it applied or not, as the call says', async () => {
    const said = { committed: 0, lost: 0 };
    for (let round = 0; round < 200; round += 1) {
      const resource = `race ${round}`;
      let takeover: Promise<unknown> = Promise.resolve();
      const outcome = await one.locks
        .withLock(resource, { retries: 0 }, ({ multi }) => {
          multi.set(one.key(resource), 'applied');
          // On its way while the commit is: some arrive before, some after.
          takeover = (async () => {
            for (let turn = 0; turn < round % 8; turn += 1) await Promise.resolve();
            if (round % 8 > 5) await new Promise(setImmediate);
            await other.redis.set(ownerKey(resource), 'an operator', 'PX', 2_000);
          })();
        })
        .then(
          () => 'committed' as const,
          (error: unknown) => {
            if (error instanceof LockLostError) return 'lost' as const;
            throw error;
          },
        );
      await takeover;
      said[outcome] += 1;
      expect([outcome, await one.redis.get(one.key(resource))]).toEqual([
        outcome,
        outcome === 'committed' ? 'applied' : null,
      ]);
      await one.redis.del(ownerKey(resource));
    }
    expect(said.committed + said.lost).toBe(200);
  });
});
