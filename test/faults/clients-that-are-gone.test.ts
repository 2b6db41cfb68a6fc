import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { RELEASE } from '../../lib/redis/lock-scripts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** Nobody listens on their channels any more, and their places are still in line. */
describe('places of clients that are gone', () => {
  let one: LockApplication;
  beforeEach(async () => {
    one = await startLocks({ url: sharedRedisUrl(), ttl: 30_000 }); // nobody waits for the end of a lease
  });
  afterEach(() => one.close());

  const queue = () => `${one.prefix}:queue:{crowd}`;
  const left = () => one.redis.zcard(queue());
  const owner = () => one.redis.get(`${one.prefix}:{crowd}`);
  const queueUpDead = async (places: number, clients: number) => {
    const members = Array.from({ length: places }, (_, i) => [i + 1, `dead${i % clients}:${i}.secret:5000`]);
    await one.redis.zadd(queue(), ...members.flat());
    await one.redis.pexpire(queue(), 60_000);
  };

  it.each([
    [4_000, 100],
    [1_500, 1],
  ])(
    '(%i of %i) are cleared away by one call after the other, and then the live one has the lock',
    async (places, clients) => {
      const held = await one.locks.acquire('crowd');
      await queueUpDead(places, clients);
      const waiting = one.locks.acquire('crowd', { wait: 20_000 });
      await eventually(async () => (await left()) === places + 1);
      const keys = ['', 'queue:', 'fence:'].map((kind) => `${one.prefix}:${kind}{crowd}`);
      // As the release does it: the lock is free then, and nobody has overtaken.
      const [[, , , look]] = (await one.redis.eval(RELEASE.text, 3, ...keys, held.token, '')) as [unknown[]];
      expect([look, await owner()]).toEqual(['now', null]);
      const afterOne = await left();
      expect(afterOne).toBeLessThan(places + 1);
      expect(afterOne).toBeGreaterThan(places - 1_000);
      expect(await one.locks.tryAcquire('crowd')).toBeNull();
      await held.release(); // goes on until somebody has it
      const lock = await waiting;
      expect([await owner(), await left()]).toEqual([lock.token, 0]);
      await lock.release();
      expect(await one.redis.hmget(`${one.prefix}:fence:{crowd}`, 'gone', 'provisional')).toEqual([
        null,
        null,
      ]);
    },
  );

  it('do not keep a shorter lease from the next in line', async () => {
    await using proxy = await startCountingProxy(sharedRedisUrl());
    await using holder = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      keyPrefix: one.prefix,
      commandTimeout: 500,
    });
    const held = await holder.locks.acquire('crowd', { ttl: 30_000 });
    const waiting = one.locks.acquire('crowd', { wait: 20_000 });
    await eventually(async () => (await left()) === 1);
    const [live = ''] = await one.redis.zrange(queue(), 0, '0');
    await queueUpDead(1_200, 1);
    await held.extend(400);
    proxy.holdRequestsWith('eval'); // the holder is gone
    const lock = await waiting;
    expect([lock.token, await left()]).toEqual([live, 0]);
    await lock.release();
    proxy.passRequests();
  });

  it('that wake up do not lose their turn to their own client', async () => {
    await using asleep = await startLocks({ keyPrefix: one.prefix, ttl: 30_000 });
    const held = await one.locks.acquire('crowd');
    const waiting = asleep.locks.acquire('crowd', { wait: 20_000 });
    await eventually(async () => (await left()) === 1);
    const [token = ''] = await one.redis.zrange(queue(), 0, '0');
    // As if it had not come for a lock that it was handed before, and the holder after that had died.
    await one.redis.hset(`${one.prefix}:fence:{crowd}`, 'silent', token.split(':')[0] ?? '');
    await one.redis.del(`${one.prefix}:{crowd}`);
    expect(await asleep.locks.tryAcquire('crowd')).toBeNull();
    const lock = await waiting;
    expect([lock.token, await owner()]).toEqual([token, token]);
    expect(await one.redis.hget(`${one.prefix}:fence:{crowd}`, 'silent')).toBeNull();
    await lock.release();
    await held.release();
  });

  it('keep nobody waiting who asks while they are cleared away', async () => {
    await queueUpDead(3_000, 60);
    const lock = await one.locks.acquire('crowd', { wait: 20_000 });
    expect([await owner(), await left()]).toEqual([lock.token, 0]);
    await lock.release();
  });

  it('are dropped, as is what is no token, when a lock is handed over', async () => {
    const held = await one.locks.acquire('crowd');
    for (const [i, garbage] of [
      'garbage',
      '',
      ':::',
      'abc:1:',
      'abc:1:0',
      'abc:1:99999999999999999999',
      'a b:1:100',
    ].entries()) {
      await one.redis.zadd(queue(), i + 1, garbage);
    }
    const waiting = one.locks.acquire('crowd', { wait: 10_000 });
    await eventually(async () => (await left()) === 8);
    await held.release();
    const lock = await waiting;
    expect([await owner(), await left()]).toEqual([lock.token, 0]);
    await lock.release();
  });
});
