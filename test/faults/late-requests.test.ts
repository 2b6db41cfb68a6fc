import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import type { AcquireOptions, Lock } from '../../lib/index.js';
import { ACQUIRE, EXTEND, RENEW } from '../../lib/redis/lock-scripts.js';
import type { Script } from '../../lib/redis/script-parts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import type { CountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { privateRedis, sharedRedisUrl } from '../support/redis/test-redis.js';

/** Requests that Redis reads late, twice, or after one that was sent later. */
describe('a request that Redis reads late', () => {
  let proxy: CountingProxy;
  let one: LockApplication;
  let other: LockApplication;

  beforeEach(async () => {
    proxy = await startCountingProxy(sharedRedisUrl());
    one = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      ttl: 1_000,
      commandTimeout: 1_000,
    });
    other = await startLocks({ keyPrefix: one.prefix, ttl: 5_000 });
  });
  afterEach(async () => {
    proxy.passReplies();
    proxy.passRequests();
    await other.app.close();
    other.redis.disconnect();
    await one.close();
    await proxy.close();
  });

  const keysOf = (resource: string) =>
    ['', 'queue:', 'fence:'].map((kind) => `${one.prefix}:${kind}{${resource}}`);
  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);
  const left = (resource: string) => one.redis.pttl(`${one.prefix}:{${resource}}`);
  const waiters = (resource: string) => one.redis.zcard(`${one.prefix}:queue:{${resource}}`);
  const run = (script: Script, keys: string[], ...argv: (string | number)[]) =>
    one.redis.eval(script.text, keys.length, ...keys, ...argv);
  const renewLate = ({ token }: Lock, resource: string, terms: number) => {
    const [ownerKey = '', , fence = ''] = keysOf(resource);
    return run(RENEW, [ownerKey, fence], token, 1_000, terms);
  };
  const queueUp = async (resource: string, options: AcquireOptions, from = one) => {
    const before = await waiters(resource);
    const lock = from.locks.acquire(resource, { wait: 10_000, ...options });
    lock.catch(() => undefined); // heard where it is awaited
    await eventually(async () => (await waiters(resource)) > before);
    await from.locks.tryAcquire(resource); // its answer comes after that to the wish to wait
    return { lock };
  };
  /** Until a renewal has made it last longer than it did the moment before. */
  const renewed = async (resource: string) => {
    let before = await left(resource);
    await eventually(async () => {
      const now = await left(resource);
      const isLonger = now > before;
      before = now;
      return isLonger;
    });
  };

  it('to renew leaves a lease as long as an extension has made it, and the next renewal keeps it so', async () => {
    const lock = await one.locks.acquire('extended');
    await lock.extend(30_000);
    expect(await renewLate(lock, 'extended', 0)).toEqual([1]);
    expect(await left('extended')).toBeGreaterThan(29_000);
    await lock.extend(3_000);
    await renewLate(lock, 'extended', 1);
    const [shortened, remaining] = [await left('extended'), lock.remaining];
    expect(shortened).toBeLessThanOrEqual(3_000); // an extension may shorten
    expect(shortened).toBeGreaterThanOrEqual(remaining);
    await renewed('extended');
    expect(await left('extended')).toBeGreaterThan(2_500);
    await lock.release();
  });

  it('to extend does nothing after a later extension, nor for a second time', async () => {
    const lock = await one.locks.acquire('extended twice');
    await lock.extend(500); // 1
    await lock.extend(30_000); // 2
    for (const [ttl, terms] of [
      [500, 1],
      [20_000, 2],
    ] as const) {
      expect(await run(EXTEND, keysOf('extended twice'), lock.token, ttl, terms)).toEqual([1, 0]);
      expect(await left('extended twice')).toBeGreaterThan(29_000);
    }
    await lock.release();
  });

  it('to extend for less, without an answer, is not overtaken by renewals that ask for more', async () => {
    const lock = await one.locks.acquire('for less', { ttl: 6_000 });
    await eventually(() => lock.remaining < 4_800);
    proxy.holdReplies();
    await expect(lock.extend(5_000)).rejects.toMatchObject({ code: 'LOCK_UNAVAILABLE' });
    proxy.passReplies();
    await renewed('for less');
    expect(await left('for less')).toBeLessThanOrEqual(5_000);
    await lock.release();
  });

  it('to renew does not end a minHold before its time', async () => {
    const lock = await one.locks.acquire('min hold', { minHold: 4_000 });
    await lock.release();
    await renewLate(lock, 'min hold', 0);
    expect(await left('min hold')).toBeGreaterThan(3_000);
    expect(await owner('min hold')).toBe(lock.token);
    await one.redis.del(...keysOf('min hold'));
  });

  it('to acquire leaves a lease as long as an extension has made it, with or without what is known of the lock', async () => {
    const lock = await one.locks.acquire('asked for again');
    await lock.extend(30_000);
    await run(ACQUIRE, keysOf('asked for again'), lock.token, '');
    expect(await left('asked for again')).toBeGreaterThan(29_000);
    await one.redis.del(`${one.prefix}:fence:{asked for again}`);
    await run(ACQUIRE, keysOf('asked for again'), lock.token, '');
    expect(await left('asked for again')).toBeGreaterThan(29_000);
    await lock.release();
  });

  it('to renew, since it was sent again for an unknown script, does not shorten the extension sent before', async () => {
    const warm = await one.locks.acquire('warm', { ttl: 90 });
    await renewed('warm'); // this connection knows the script
    await warm.release();
    const held = await other.locks.acquire('flushed');
    const waiting = await queueUp('flushed', { ttl: 1_000 });
    await one.redis.script('FLUSH');
    await held.release();
    const lock = await waiting.lock;
    await lock.extend(30_000);
    await one.redis.ping();
    await one.locks.inspect('flushed'); // whatever was sent before has been done
    expect(await left('flushed')).toBeGreaterThan(29_000);
    await lock.release();
  });

  it('to wait, of a waiter that is gone, is given back as soon as the lock is handed to it', async () => {
    const held = await other.locks.acquire('zombie', { ttl: 20_000 });
    const abort = new AbortController();
    const gone = await queueUp('zombie', { signal: abort.signal });
    const [token = ''] = await one.redis.zrange(`${one.prefix}:queue:{zombie}`, 0, '0');
    abort.abort();
    await expect(gone.lock).rejects.toMatchObject({ reason: 'aborted' });
    await run(ACQUIRE, keysOf('zombie'), token, '0 60000');
    expect(await waiters('zombie')).toBe(1);
    const next = await queueUp('zombie', { ttl: 20_000 }, other);
    await held.release(); // to the one that is gone
    const lock = await next.lock;
    expect([await owner('zombie'), await waiters('zombie')]).toEqual([lock.token, 0]);
    // It never waited for the end of that grant, after which its client would have been taken for silent.
    expect(await one.redis.hget(`${one.prefix}:fence:{zombie}`, 'silent')).toBeNull();
    await lock.release();
  });

  it('to commit names the waiter that it has handed the lock to, and not that of another resource', async () => {
    await one.locks.withLock('warm', ({ multi }) => multi.set(one.key('warm'), 1));
    const holder = await one.locks.acquire('b', { ttl: 20_000 });
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    const committed = one.locks.withLock('a', { ttl: 300 }, async ({ multi }) => {
      multi.set(one.key('committed'), 1);
      await gate;
    });
    await eventually(async () => (await owner('a')) !== null);
    const both = one.locks.acquire(['a', 'b'], { wait: 10_000 });
    await eventually(async () => (await waiters('a')) === 1);
    const [token] = await one.redis.zrange(`${one.prefix}:queue:{a}`, 0, '0');
    proxy.holdReplies(one.key('warm')); // on the connection of commits
    finish();
    await eventually(async () => (await waiters('b')) === 1); // it has asked at the end of the lease, and goes on
    expect(await owner('a')).toBe(token);
    proxy.passReplies(); // it names the waiter, which waits for the other resource by now
    await committed;
    await holder.release();
    const lock = await both;
    expect([await owner('a'), await owner('b')]).toEqual([token, token]);
    expect(lock.fencingTokens.get('b')).toBeGreaterThan(holder.fencingToken);
    await lock.release();
  });

  it('is waited for by those who give up for one commandTimeout, however many resources they wait for', async () => {
    const server = await privateRedis();
    const local = await startLocks({ url: server.url, commandTimeout: 1_500 });
    const holder = await startLocks({ url: server.url, keyPrefix: local.prefix });
    const held = await holder.locks.acquire('a', { ttl: 60_000 });
    const given = (resource: string | string[]) =>
      local.locks.acquire(resource, { wait: 1_000 }).then(
        () => 'granted',
        (error: { reason?: string }) => error.reason,
      );
    const [single, several] = [given('a'), given(['a', 'b'])];
    let ended: string | undefined;
    void several.then((how) => (ended = how));
    await eventually(async () => (await local.redis.zcard(`${local.prefix}:queue:{a}`)) === 2);
    const { pid = 0 } = server;
    process.kill(pid, 'SIGSTOP');
    try {
      expect(await single).toBe('timeout');
      await eventually(() => ended === 'timeout', 700); // half of the time it would take to wait once more
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await held.release();
    await holder.app.close();
    holder.redis.disconnect();
    await local.app.close();
    local.redis.disconnect();
    await server.stop();
  });
});
