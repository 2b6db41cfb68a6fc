import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { RELEASE } from '../../lib/redis/lock-scripts.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** Nobody listens on their channels any more, and their places are still in line. */
describe('places of clients that are gone', () => {
  let one: LockApplication;
  beforeEach(async () => {
    one = await startLocks({ url: sharedRedisUrl(), ttl: 5_000 });
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

  it('are cleared away by one call after the other, of which none takes many, and then the live one has the lock', async () => {
    const held = await one.locks.acquire('crowd');
    await queueUpDead(4_000, 100);
    const waiting = one.locks.acquire('crowd', { wait: 20_000 });
    await eventually(async () => (await left()) === 4_001);
    const keys = ['', 'queue:', 'fence:'].map((kind) => `${one.prefix}:${kind}{crowd}`);
    // As the release does it: the lock is free then, and nobody has overtaken.
    const [[, , , look]] = (await one.redis.eval(RELEASE.text, 3, ...keys, held.token, '')) as [unknown[]];
    expect([look, await owner()]).toEqual(['now', null]);
    const afterOne = await left();
    expect(afterOne).toBeLessThan(4_001);
    expect(afterOne).toBeGreaterThan(3_000);
    expect(await one.locks.tryAcquire('crowd')).toBeNull();
    await held.release(); // goes on until somebody has it
    const lock = await waiting;
    expect([await owner(), await left()]).toEqual([lock.token, 0]);
    await lock.release();
    expect(await one.redis.hmget(`${one.prefix}:fence:{crowd}`, 'gone', 'provisional')).toEqual([null, null]);
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
