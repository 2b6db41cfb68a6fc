import { describe, expect, it } from '@jest/globals';
import type { Lock } from '../../lib/index.js';
import { PASS_ON, RELEASE } from '../../lib/redis/lock-scripts.js';
import { MAX_UNHEARD } from '../../lib/redis/script-parts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** Several hand-overs inside of a process, of which Redis has not heard. */
describe('a lock that is passed on several times before Redis hears of it', () => {
  const keysOf = ({ prefix }: LockApplication, resource: string) => {
    const [owner = '', queue = '', fence = ''] = ['', 'queue:', 'fence:'].map(
      (kind) => `${prefix}:${kind}{${resource}}`,
    );
    return { owner, queue, fence };
  };
  const queueUp = async (one: LockApplication, resource: string) => {
    const { queue } = keysOf(one, resource);
    const before = await one.redis.zcard(queue);
    const lock = one.locks.acquire(resource, { wait: 20_000 });
    lock.catch(() => undefined); // heard where it is awaited
    await eventually(async () => (await one.redis.zcard(queue)) > before);
    await one.locks.tryAcquire(resource); // its answer comes after that to the wish to wait
    return { lock };
  };

  it.each([
    ['PASS_ON', PASS_ON.text, ['c:3:5000', 1_002, 'c:2:5000', 'c:1:5000'], 'c:3:5000'],
    ['RELEASE', RELEASE.text, ['c:3:5000 c:2:5000 c:1:5000', 1_002], null],
  ])('%s takes all of their places out of the line', async (_, script, argv, ownerAfter) => {
    await using one = await startLocks();
    const { owner, queue, fence } = keysOf(one, 'places');
    await one.redis.set(owner, 'c:1:5000', 'PX', 5_000);
    await one.redis.hset(fence, 'last', 1_000, 'since', 1_000);
    await one.redis.pexpire(fence, 5_000);
    await one.redis.zadd(queue, 1, 'c:2:5000', 2, 'c:3:5000');
    await one.redis.eval(script, 3, owner, queue, fence, ...argv);
    expect([await one.redis.get(owner), await one.redis.zrange(queue, 0, '-1')]).toEqual([ownerAfter, []]);
    await one.redis.del(owner);
  });

  it('stays with the last one when Redis refused to hear of the others, and Redis agrees', async () => {
    await using one = await startLocks({ ttl: 6_000 });
    const { owner, fence } = keysOf(one, 'refused');
    const held = await one.locks.acquire('refused');
    const [first, second] = [await queueUp(one, 'refused'), await queueUp(one, 'refused')];
    await one.redis.rename(fence, `${fence}:aside`);
    await one.redis.set(fence, 'of a wrong type', 'PX', 60_000);
    const failures = async () =>
      Number(/errorstat_WRONGTYPE:count=(\d+)/.exec(await one.redis.info('errorstats'))?.[1] ?? 0);
    const before = await failures();
    void held.release().catch(() => undefined); // it hears that Redis could not be told
    void (await first.lock).release().catch(() => undefined);
    const last = await second.lock;
    await eventually(async () => (await failures()) >= before + 2);
    await one.redis.rename(`${fence}:aside`, fence);
    await eventually(async () => (await one.redis.get(owner)) === last.token);
    await last.extend(); // waits until Redis has heard
    expect([last.held, await one.redis.get(owner)]).toEqual([true, last.token]);
    await last.release();
  });

  it('goes through no more hands than its fencing tokens allow', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const one = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      ttl: 20_000,
      commandTimeout: 5_000,
    });
    try {
      const held = await one.locks.acquire('many');
      const begun: Lock[] = [];
      const turns = Array.from({ length: MAX_UNHEARD + 20 }, async () => {
        const lock = await one.locks.acquire('many', { wait: 20_000 });
        begun.push(lock);
        await lock.release();
      });
      const { queue } = keysOf(one, 'many');
      await eventually(async () => (await one.redis.zcard(queue)) === turns.length);
      await one.locks.tryAcquire('many');
      proxy.reset();
      proxy.holdReplies();
      const released = held.release();
      await eventually(() => begun.length >= MAX_UNHEARD / 4 && proxy.roundTrips() > 0);
      await one.redis.ping();
      await new Promise((resolve) => setImmediate(resolve));
      expect(begun.length).toBeGreaterThan(1);
      expect(begun.length).toBeLessThanOrEqual(MAX_UNHEARD);
      proxy.passReplies();
      await released;
      await Promise.all(turns);
      const tokens = begun.map(({ fencingToken }) => fencingToken);
      expect(tokens).toEqual([...new Set(tokens)].sort((a, b) => a - b));
    } finally {
      proxy.passReplies();
      await one.close();
      await proxy.close();
    }
  });
});
