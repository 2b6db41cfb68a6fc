import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { LockUnavailableError } from '../../lib/index.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import type { CountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const BIG = Buffer.alloc(1_100_000, 'x');

describe('a commit of more than 1 MB', () => {
  let proxy: CountingProxy;
  let one: LockApplication;

  beforeEach(async () => {
    proxy = await startCountingProxy(sharedRedisUrl());
    one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url });
  });
  afterEach(async () => {
    await one.close();
    await proxy.close();
  });

  const bigOne = (name: string, options = {}) =>
    one.locks.withLock(name, options, ({ multi }) => multi.set(one.key(name), BIG).incr(one.key('bigs')));
  const smallOne = (i: number) =>
    one.locks.withLock(`small:${i}`, { retries: 0 }, ({ multi }) => multi.incr(one.key('smalls')));

  it('holds nobody else up while it is on its way', async () => {
    await smallOne(0);
    proxy.holdRequestsWith(one.key('on-its-way'));
    const big = bigOne('on-its-way', { retries: 0 });
    await eventually(() => proxy.heldRequests() > 0);
    await Promise.all(Array.from({ length: 5 }, (_, i) => smallOne(i)));
    expect(await one.redis.mget(one.key('smalls'), one.key('bigs'))).toEqual(['6', null]);
    proxy.passRequests();
    await big;
    expect(await one.redis.strlen(one.key('on-its-way'))).toBe(BIG.length);
  });

  it('cuts nobody else off when it is not answered in time, and is settled by itself', async () => {
    const impatient = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      keyPrefix: one.prefix,
      commandTimeout: 300,
    });
    const commit = (name: string, value: Buffer | string) =>
      impatient.locks.withLock(name, { retries: 0 }, ({ multi }) => multi.set(one.key(name), value));
    await commit('before', 'x');
    proxy.holdRequestsWith(one.key('stuck'));
    const stuck = commit('stuck', BIG).catch((error: unknown) => error);
    let isStuck = true;
    void stuck.then(() => (isStuck = false));
    let others = 0;
    for (; isStuck; others += 1) await commit(`other:${others % 5}`, 'x');
    expect(others).toBeGreaterThan(0);
    expect(await stuck).toMatchObject({ code: 'LOCK_LOST' });
    proxy.passRequests();
    await commit('after', 'x');
    expect(await one.redis.exists(one.key('stuck'))).toBe(0);
    await impatient.app.close();
    impatient.redis.disconnect();
  });

  it('waits for one of the 8 connections, so that a service keeps no more than 12 to a server', async () => {
    let most = 0;
    const looking = setInterval(() => (most = Math.max(most, proxy.clients())), 1);
    await Promise.all(Array.from({ length: 20 }, (_, i) => bigOne(`big:${i}`)));
    clearInterval(looking);
    expect(await one.redis.get(one.key('bigs'))).toBe('20');
    expect(Math.max(most, proxy.clients())).toBeLessThanOrEqual(12);
  });

  it('is refused, with nothing applied, when all connections are watching until the end of its lease', async () => {
    let arrived = 0;
    let isOver = false;
    const watching = async (name: string, inside: () => Promise<unknown>) =>
      one.locks.withLock(name, async ({ watch }) => {
        await watch(one.key('watched'));
        await inside();
      });
    const until = async () => {
      arrived += 1;
      await eventually(() => isOver);
    };
    const watchers = Array.from({ length: 7 }, (_, i) =>
      watching(`watching:${i}`, () => (i === 0 ? watching('nested', until) : until())),
    );
    await eventually(() => arrived === 7);
    const refused = await bigOne('refused', { ttl: 300 }).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(LockUnavailableError);
    expect((refused as Error).message).toContain('All 8 connections');
    isOver = true;
    await Promise.all(watchers);
    expect(await one.redis.exists(one.key('refused'), `${one.prefix}:{refused}`)).toBe(0);
    await bigOne('refused');
    expect(await one.redis.get(one.key('bigs'))).toBe('1');
  });

  it('of work inside of work that watches has a connection left', async () => {
    let arrived = 0;
    await Promise.all(
      Array.from({ length: 7 }, (_, i) =>
        one.locks.withLock(`outer:${i}`, async ({ watch, multi }) => {
          await watch(one.key(`outer:${i}`));
          arrived += 1;
          await eventually(() => arrived === 7);
          await bigOne(`inner:${i}`);
          multi.incr(one.key('outer'));
        }),
      ),
    );
    expect(await one.redis.mget(one.key('outer'), one.key('bigs'))).toEqual(['7', '7']);
  });
});
