import { describe, expect, it } from '@jest/globals';
import type { AcquireOptions } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** What stands in Redis while callers wait, and when they have had their turn. */
describe('the line of a lock', () => {
  const inLine = ({ redis, prefix }: LockApplication, resource: string) =>
    redis.zcard(`${prefix}:queue:{${resource}}`);
  /** Starts to wait, and resolves when the place is taken and its service knows of it. */
  const queueUp = async (from: LockApplication, resource: string, options: AcquireOptions = {}) => {
    const before = await inLine(from, resource);
    const lock = from.locks.acquire(resource, { wait: 10_000, ...options });
    lock.catch(() => undefined); // heard where it is awaited
    await eventually(async () => (await inLine(from, resource)) > before);
    await from.locks.tryAcquire(resource);
    return { lock };
  };

  it('ends by itself when nobody is left who waits: after the time of the last one, and its ttl', async () => {
    await using one = await startLocks();
    const held = await one.locks.acquire('ends');
    const { lock } = await queueUp(one, 'ends', { wait: 5_000, ttl: 2_000 });
    const left = await one.redis.pttl(`${one.prefix}:queue:{ends}`);
    expect(left).toBeGreaterThan(5_000);
    expect(left).toBeLessThanOrEqual(7_000);
    await held.release();
    await (await lock).release();
  });

  it('has as many places as maxWaiters says, and no more', async () => {
    await using one = await startLocks({ maxWaiters: 2 });
    const held = await one.locks.acquire('places');
    const waiting = [await queueUp(one, 'places'), await queueUp(one, 'places')];
    const third = await one.locks.acquire('places', { wait: 5_000 }).catch((error: unknown) => error);
    expect(third).toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'queue_full' });
    await held.release();
    for (const { lock } of waiting) await (await lock).release();
  });

  it('keeps nothing of a hand-over to a waiter whose lease is not renewed, and which therefore asked', async () => {
    await using one = await startLocks();
    await using other = await startLocks({ keyPrefix: one.prefix });
    const held = await other.locks.acquire('asked');
    const { lock } = await queueUp(one, 'asked', { autoExtend: false });
    await held.release();
    const mine = await lock;
    expect(await one.redis.hget(`${one.prefix}:fence:{asked}`, 'provisional')).toBeNull();
    expect(await one.redis.get(`${one.prefix}:{asked}`)).toBe(mine.token);
    await mine.release();
  });

  it('of the second of several resources is waited in while the first one stays taken, beyond its ttl', async () => {
    await using one = await startLocks();
    await using other = await startLocks({ keyPrefix: one.prefix });
    const second = await other.locks.acquire('two', { ttl: 10_000 });
    const both = one.locks.acquire(['one', 'two'], { wait: 10_000, ttl: 300 });
    await eventually(async () => (await inLine(one, 'two')) === 1);
    const token = await one.redis.get(`${one.prefix}:{one}`);
    await using clock = await other.locks.acquire('clock', { ttl: 900, autoExtend: false });
    await eventually(() => !clock.held); // three times its ttl
    expect(await one.redis.get(`${one.prefix}:{one}`)).toBe(token);
    expect(await other.locks.tryAcquire('one')).toBeNull();
    await second.release();
    const lock = await both;
    expect(lock.token).toBe(token);
    await lock.release();
  });

  it('gives back what was taken of several resources when the caller gave up during an outage', async () => {
    await using other = await startLocks();
    const proxy = await startFaultProxy(sharedRedisUrl());
    const one = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      keyPrefix: other.prefix,
      commandTimeout: 200,
    });
    try {
      const second = await other.locks.acquire('b', { ttl: 20_000 });
      const both = one.locks.acquire(['a', 'b'], { wait: 600, ttl: 20_000 }).catch((error: unknown) => error);
      await eventually(async () => (await inLine(other, 'b')) === 1);
      proxy.leadTo('redis://127.0.0.1:1');
      proxy.cut();
      expect(await both).toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'timeout' });
      expect(await other.redis.exists(`${other.prefix}:{a}`)).toBe(1);
      proxy.leadTo(sharedRedisUrl());
      await eventually(async () => (await other.redis.exists(`${other.prefix}:{a}`)) === 0);
      await second.release();
    } finally {
      proxy.leadTo(sharedRedisUrl());
      await one.app.close();
      one.redis.disconnect();
      await proxy.close();
    }
  });
});
