import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockLostError } from '../../lib/index.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { privateRedis, sharedRedisUrl } from '../support/redis/test-redis.js';

describe('a lease', () => {
  afterEach(() => void jest.restoreAllMocks());

  const left = ({ redis, prefix }: LockApplication, resource: string) =>
    redis.pttl(`${prefix}:{${resource}}`);
  const behindProxy = async (commandTimeout: number) => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, commandTimeout });
    return {
      proxy,
      one,
      async [Symbol.asyncDispose]() {
        proxy.passReplies();
        await one.close();
        await proxy.close();
      },
    };
  };

  it('is renewed as soon as a third of its ttl is over', async () => {
    await using one = await startLocks();
    await using _lock = await one.locks.acquire('third', { ttl: 1_500 });
    let least = 1_500;
    let before = least;
    await eventually(async () => {
      least = Math.min(least, before);
      const now = await left(one, 'third');
      const isRenewed = now > before;
      before = now;
      return isRenewed;
    });
    expect(least).toBeGreaterThan(400); // long before the end
  });

  it('is renewed together with all others that are due', async () => {
    await using one = await startLocks();
    const locks = await Promise.all(
      Array.from({ length: 10 }, (_, i) => one.locks.acquire(`together:${i}`, { ttl: 600 })),
    );
    await using until = await one.locks.acquire('until', { ttl: 1_500, autoExtend: false });
    await eventually(() => !until.held);
    expect(locks.map((lock) => lock.held)).toEqual(locks.map(() => true));
    const owners = await one.redis.mget(...locks.map((_, i) => `${one.prefix}:{together:${i}}`));
    expect(owners).toEqual(locks.map(({ token }) => token));
    await Promise.all(locks.map((lock) => lock.release()));
  });

  it('of several resources is lost with the first of them, and the others are given back', async () => {
    await using one = await startLocks();
    await using lock = await one.locks.acquire(['kept', 'lost'], { ttl: 900 });
    await one.redis.del(`${one.prefix}:{lost}`);
    await eventually(() => lock.signal.aborted);
    expect(lock.signal.reason).toBeInstanceOf(LockLostError);
    await eventually(async () => (await left(one, 'kept')) < 0);
  });

  it('that was renewed counts from when the renewal was sent, however late the answer', async () => {
    await using setup = await behindProxy(5_000);
    const { one, proxy } = setup;
    await using lock = await one.locks.acquire('late', { ttl: 1_500 });
    proxy.reset();
    proxy.holdReplies();
    await eventually(() => proxy.roundTrips() > 0); // the renewal
    const renewedAt = await left(one, 'late');
    await eventually(async () => (await left(one, 'late')) < renewedAt - 300);
    proxy.passReplies();
    const before = lock.remaining;
    await eventually(() => lock.remaining > before); // the answer is there
    expect(lock.remaining).toBeLessThanOrEqual(await left(one, 'late').then((ms) => ms + 5));
  });

  it('whose renewal Redis refuses for a while is renewed after that', async () => {
    const server = await privateRedis();
    const admin = new Redis(server.url);
    try {
      await admin.acl('SETUSER', 'app', 'on', '>secret', '~*', '&*', '+@all');
      const url = Object.assign(new URL(server.url), { username: 'app', password: 'secret' });
      await using one = await startLocks({ url: server.url, connection: url.href });
      await using lock = await one.locks.acquire('refused', { ttl: 1_500 });
      await admin.acl('SETUSER', 'app', '-eval', '-evalsha');
      const refusals = async () =>
        Number(/errorstat_NOPERM:count=(\d+)/.exec(await admin.info('errorstats'))?.[1] ?? 0);
      await eventually(async () => (await refusals()) >= 2);
      await admin.acl('SETUSER', 'app', '+@all');
      await eventually(async () => (await left(one, 'refused')) > 1_300);
      expect(lock.held).toBe(true);
    } finally {
      admin.disconnect();
      await server.stop();
    }
  });

  it('is over when the wall clock says so: the machine may have slept', async () => {
    await using one = await startLocks();
    await using lock = await one.locks.acquire('slept', { ttl: 10_000 });
    const real = Date.now;
    jest.spyOn(Date, 'now').mockImplementation(() => real() + 11_000);
    expect([lock.remaining, lock.held]).toEqual([0, false]);
  });

  it('that is to be shorter is believed to be shorter, also without an answer', async () => {
    await using setup = await behindProxy(400);
    const { one, proxy } = setup;
    await using lock = await one.locks.acquire('shorter', { ttl: 20_000, autoExtend: false });
    proxy.holdReplies();
    const extended = lock.extend(1_000).catch((error: unknown) => error);
    await eventually(async () => (await left(one, 'shorter')) <= 1_000);
    expect(lock.remaining).toBeLessThanOrEqual(1_000);
    await extended;
  });

  it('that has a minHold beyond its ttl lasts to its end, also when Redis could not be reached at the release', async () => {
    const proxy = await startFaultProxy(sharedRedisUrl());
    const one = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      ttl: 3_000,
      commandTimeout: 200,
    });
    try {
      const lock = await one.locks.acquire('held back', { minHold: 20_000 });
      proxy.leadTo('redis://127.0.0.1:1');
      proxy.cut();
      await expect(one.locks.tryAcquire('another')).rejects.toMatchObject({ code: 'LOCK_UNAVAILABLE' });
      await lock.release();
      expect(await left(one, 'held back')).toBeLessThanOrEqual(3_000);
      proxy.leadTo(sharedRedisUrl());
      await eventually(async () => (await left(one, 'held back')) > 15_000);
    } finally {
      proxy.leadTo(sharedRedisUrl());
      await one.app.close();
      await one.redis.del(`${one.prefix}:{held back}`);
      one.redis.disconnect();
      await proxy.close();
    }
  });

  it('is extended by one request after the other, each when the one before was answered', async () => {
    await using setup = await behindProxy(5_000);
    const { one, proxy } = setup;
    await using lock = await one.locks.acquire('in turn', { ttl: 30_000, autoExtend: false });
    proxy.reset();
    proxy.holdReplies();
    const both = [lock.extend(20_000), lock.extend(1_000)];
    await eventually(async () => (await left(one, 'in turn')) <= 20_000);
    await one.redis.ping();
    expect(await left(one, 'in turn')).toBeGreaterThan(10_000);
    expect(proxy.roundTrips()).toBe(1);
    proxy.passReplies();
    await Promise.all(both);
    expect(await left(one, 'in turn')).toBeLessThanOrEqual(1_000);
  });
});
