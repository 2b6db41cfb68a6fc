import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  LockConfigurationError,
  LockError,
  LockLostError,
  LockNotAcquiredError,
  LockUnavailableError,
} from '../../lib/index.js';
import type { AcquireOptions, Resource } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

describe('a lock', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);

  it('is held by its token in Redis until it is released', async () => {
    const lock = await one.locks.acquire('held');
    expect(await owner('held')).toBe(lock.token);
    expect(await one.redis.pttl(`${one.prefix}:{held}`)).toBeGreaterThan(1_500);
    expect(lock.held).toBe(true);
    expect(lock.remaining).toBeGreaterThan(1_500);
    expect(lock.remaining).toBeLessThanOrEqual(2_000 * 0.99 - 2);
    expect(lock.resources).toEqual(['held']);

    await lock.release();
    expect(await owner('held')).toBeNull();
    expect(lock.held).toBe(false);
    expect(lock.remaining).toBe(0);
    expect(lock.signal.aborted).toBe(false);
  });

  it('is refused to everybody else at once, with a time after which to try again', async () => {
    await using _lock = await one.locks.acquire('busy');
    expect(await other.locks.tryAcquire('busy')).toBeNull();
    expect(await one.locks.tryAcquire('busy')).toBeNull();
    const refusal = await other.locks.acquire('busy').catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(LockNotAcquiredError);
    expect(refusal).toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'busy', resources: ['busy'] });
    expect((refusal as LockNotAcquiredError).getStatus()).toBe(423);
    expect((refusal as LockNotAcquiredError).retryAfter).toBeGreaterThan(0);
    expect((refusal as LockNotAcquiredError).retryAfter).toBeLessThanOrEqual(2_000);
  });

  it('is free again after a release, and a second release does nothing to its next holder', async () => {
    const first = await one.locks.acquire('again');
    await first.release();
    const second = await other.locks.acquire('again');
    await first.release();
    expect(await owner('again')).toBe(second.token);
    await second.release();
  });

  it('is released at the end of an `await using` block', async () => {
    {
      await using lock = await one.locks.acquire('block');
      expect(await owner('block')).toBe(lock.token);
    }
    expect(await owner('block')).toBeNull();
  });

  it('case 19: two acquisitions of one process never share a token', async () => {
    const tokens = new Set<string>();
    for (let i = 0; i < 5; i += 1) {
      await using lock = await one.locks.acquire('token');
      tokens.add(lock.token);
    }
    expect(tokens.size).toBe(5);
  });

  it('ends by itself when its holder is silent, and tells the holder before anybody else can have it', async () => {
    const lock = await one.locks.acquire('silent', { ttl: 100, autoExtend: false });
    let told = false;
    lock.signal.addEventListener('abort', () => (told = true));
    await eventually(async () => {
      const wasTold = told;
      const held = await owner('silent');
      return held === null && wasTold; // in this order: it knew before the lock was gone
    });
    expect(lock.held).toBe(false);
    expect(lock.signal.reason).toBeInstanceOf(LockLostError);
    expect(await other.locks.tryAcquire('silent')).not.toBeNull();
    await other.redis.del(`${one.prefix}:{silent}`);
  });

  it('is renewed for longer than its ttl while it is held', async () => {
    const lock = await one.locks.acquire('renewed', { ttl: 150 });
    const acquired = performance.now();
    await eventually(async () => {
      expect(await owner('renewed')).toBe(lock.token);
      return performance.now() - acquired > 600;
    });
    expect(lock.held).toBe(true);
    await lock.release();
    expect(await owner('renewed')).toBeNull();
  });

  it('is not renewed beyond maxHold', async () => {
    const lock = await one.locks.acquire('max-hold', { ttl: 100, maxHold: 200 });
    const acquired = performance.now();
    await eventually(() => lock.signal.aborted);
    expect(performance.now() - acquired).toBeGreaterThan(200);
  });

  it('is extended by its owner only', async () => {
    const lock = await one.locks.acquire('extend', { ttl: 500 });
    await lock.extend(5_000);
    expect(lock.remaining).toBeGreaterThan(4_000);
    expect(await one.redis.pttl(`${one.prefix}:{extend}`)).toBeGreaterThan(4_000);

    await one.redis.set(`${one.prefix}:{extend}`, 'somebody else', 'PX', 1_000);
    await expect(lock.extend()).rejects.toBeInstanceOf(LockLostError);
    expect(await owner('extend')).toBe('somebody else');
    expect(await one.redis.pttl(`${one.prefix}:{extend}`)).toBeLessThanOrEqual(1_000);
    expect(lock.signal.aborted).toBe(true);

    await lock.release();
    expect(await owner('extend')).toBe('somebody else');
    await one.redis.del(`${one.prefix}:{extend}`);
  });

  it('cannot be extended after its release, nor after its end, and is not created anew by that', async () => {
    const released = await one.locks.acquire('gone');
    await released.release();
    await expect(released.extend()).rejects.toMatchObject({ code: 'LOCK_LOST' });
    const deleted = await one.locks.acquire('gone');
    await one.redis.del(`${one.prefix}:{gone}`);
    await expect(deleted.extend()).rejects.toMatchObject({ code: 'LOCK_LOST' });
    expect(await owner('gone')).toBeNull();
  });

  it('a shorter extension counts at once', async () => {
    const lock = await one.locks.acquire('shorter', { ttl: 5_000, autoExtend: false });
    await lock.extend(100);
    expect(lock.remaining).toBeLessThan(100);
    await eventually(() => lock.signal.aborted, 1_000);
  });

  it('extended by several callers at once is what Redis did last', async () => {
    const lock = await one.locks.acquire('overlapping', { ttl: 5_000, autoExtend: false });
    await Promise.all([lock.extend(30_000), lock.extend(1_000), lock.extend(20_000), lock.extend(800)]);
    expect(lock.remaining).toBeLessThanOrEqual(800);
    expect(await one.redis.pttl(`${one.prefix}:{overlapping}`)).toBeGreaterThanOrEqual(lock.remaining);
    await lock.release();
  });

  it('case 23: a renewal that races the release does not keep the lock alive', async () => {
    for (let i = 0; i < 40; i += 1) {
      const lock = await one.locks.acquire('race', { ttl: 30 });
      const start = performance.now();
      await elapse(9 + (i % 5) / 2, start); // about when it is renewed
      await lock.release();
      expect(await owner('race')).toBeNull();
    }
    const start = performance.now();
    await eventually(async () => {
      expect(await owner('race')).toBeNull();
      return performance.now() - start > 60;
    });
  });

  it('can be released after its application was closed', async () => {
    const closed = await startLocks({ keyPrefix: one.prefix });
    const lock = await closed.locks.acquire('closed');
    await closed.app.close();
    expect(lock.signal.aborted).toBe(true);
    await lock.release();
    closed.redis.disconnect();
  });

  it('case 22: a deleted lock is noticed by the renewal, which does not create it again', async () => {
    const lock = await one.locks.acquire('deleted', { ttl: 300 });
    await one.redis.del(`${one.prefix}:{deleted}`);
    await eventually(() => lock.signal.aborted, 290);
    expect(await owner('deleted')).toBeNull();
  });

  it('counts fencing tokens up, also across expiry and a lost fence key', async () => {
    const tokens: number[] = [];
    for (let i = 0; i < 3; i += 1) {
      const lock = await one.locks.acquire('fenced');
      tokens.push(lock.fencingToken);
      expect(lock.fencingTokens.get('fenced')).toBe(lock.fencingToken);
      await lock.release();
      if (i === 1) await one.redis.del(`${one.prefix}:fence:{fenced}`);
    }
    expect(tokens).toEqual([...new Set(tokens)].sort((a, b) => a - b));
    expect(tokens.every(Number.isSafeInteger)).toBe(true);
  });

  it('counts on from a fencing token that is ahead of the clock', async () => {
    const ahead = Date.now() * 1_000 + 3_600_000_000;
    await one.redis.hset(`${one.prefix}:fence:{ahead}`, 'last', ahead);
    await using lock = await one.locks.acquire('ahead');
    expect(lock.fencingToken).toBeGreaterThan(ahead);
  });

  it('has its fencing tokens remembered for longer than it can last, however often it is taken', async () => {
    const fence = `${one.prefix}:fence:{remembered}`;
    const left = async () =>
      Math.min(await one.redis.pttl(fence), Number(await one.redis.hget(fence, 'kept')) - Date.now() + 1_000);
    for (const ttl of [100, 100, 40_000, 200, 90_000]) {
      const lock = await one.locks.acquire('remembered', { ttl });
      expect(await left()).toBeGreaterThan(2 * ttl + 59_000);
      await lock.extend(ttl + 30_000);
      expect(await left()).toBeGreaterThan(2 * (ttl + 30_000) + 59_000);
      await lock.release();
    }
  });

  it('of several resources is taken all or none', async () => {
    await using _b = await other.locks.acquire('b');
    expect(await one.locks.tryAcquire(['a', 'b', 'c'])).toBeNull();
    expect([await owner('a'), await owner('c')]).toEqual([null, null]);

    const lock = await one.locks.acquire(['d', 'a', 'd']);
    expect(lock.resources).toEqual(['a', 'd']);
    expect(await owner('a')).toBe(lock.token);
    expect(await owner('d')).toBe(lock.token);
    expect(lock.fencingToken).toBe(Math.max(...lock.fencingTokens.values()));
    await lock.release();
    expect([await owner('a'), await owner('d')]).toEqual([null, null]);
  });

  it('with a slot has it as the hash tag of all its keys', async () => {
    const lock = await one.locks.acquire('r', { slot: 's' });
    expect(await one.redis.get(`${one.prefix}:{s}:r`)).toBe(lock.token);
    await lock.release();
  });

  it('on a name of over 512 bytes has a short key that begins like the name, and no two names share one', async () => {
    const long = `report:${'ä'.repeat(400)}`;
    const lock = await one.locks.acquire(long);
    await using _like = await one.locks.acquire(`${long}!`);
    const keys = await one.redis.keys(`${one.prefix}:{report:ää*`);
    expect(keys).toHaveLength(2);
    expect(Math.max(...keys.map((key) => Buffer.byteLength(key)))).toBeLessThan(600);
    expect(lock.resources).toEqual([long]);
    expect(await one.locks.tryAcquire(long)).toBeNull();
    await lock.release();
  });

  it('is not taken when the caller has aborted, and is given back when that happens on the way', async () => {
    await expect(one.locks.acquire('aborted', { signal: AbortSignal.abort('why') })).rejects.toMatchObject({
      reason: 'aborted',
      cause: 'why',
    });
    const controller = new AbortController();
    const acquired = one.locks.acquire('aborted', { signal: controller.signal });
    controller.abort();
    await expect(acquired).rejects.toMatchObject({ reason: 'aborted' });
    await eventually(async () => (await owner('aborted')) === null, 1_000);
  });

  it('case 18d: on a key that holds another type is unavailable, and nothing is changed', async () => {
    await one.redis.rpush(`${one.prefix}:{typed}`, 'x');
    const refusal = await one.locks.acquire('typed').catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(LockUnavailableError);
    expect((refusal as LockUnavailableError).cause).toMatchObject({ name: 'ReplyError' });
    expect(await one.redis.lrange(`${one.prefix}:{typed}`, 0, -1)).toEqual(['x']);
    await one.redis.del(`${one.prefix}:{typed}`);
  });

  it('case 17: SCRIPT FLUSH between acquire and release changes nothing', async () => {
    const lock = await one.locks.acquire('flushed');
    await one.redis.script('FLUSH');
    await lock.extend();
    await one.redis.script('FLUSH');
    await lock.release();
    expect(await owner('flushed')).toBeNull();
    await one.redis.script('FLUSH');
    const locks = await Promise.all(['f1', 'f2', 'f3'].map((name) => one.locks.acquire(name)));
    await Promise.all(locks.map((each) => each.release()));
  });

  const wrongResources: [string, unknown][] = [
    ['nothing', ''],
    ['none', []],
    ['an opening brace', 'a{b'],
    ['a closing brace', 'a}b'],
    ['no string', 7],
    ['undefined', undefined],
    ['a number among strings', ['a', 7]],
    ['half a surrogate pair', 'a\ud800'],
  ];
  it.each(wrongResources)('rejects, without a throw, a resource that is %s', async (_what, resource) => {
    await expect(one.locks.acquire(resource as Resource)).rejects.toBeInstanceOf(LockConfigurationError);
    await expect(one.locks.tryAcquire(resource as Resource)).rejects.toBeInstanceOf(LockError);
    await expect(one.locks.withLock(resource as Resource, () => 1)).rejects.toMatchObject({
      code: 'LOCK_CONFIGURATION',
    });
  });

  const wrongOptions: [string, unknown][] = [
    ['ttl', 9],
    ['ttl', 10.5],
    ['ttl', Infinity],
    ['ttl', '100'],
    ['wait', -1],
    ['wait', NaN],
    ['autoExtend', 1],
    ['maxHold', -1],
    ['slot', ''],
    ['slot', 'a}'],
    ['signal', {}],
    ['tttl', 100],
  ];
  it.each(wrongOptions)('rejects a wrong option and names it: %s %p', async (name, value) => {
    const options = { [name]: value } as AcquireOptions;
    const message = expect.stringContaining(`"${name}"`);
    await expect(one.locks.acquire('x', options)).rejects.toMatchObject({
      code: 'LOCK_CONFIGURATION',
      message,
    });
    await expect(one.locks.tryAcquire('x', options)).rejects.toMatchObject({ message });
    await expect(one.locks.withLock('x', options, () => 1)).rejects.toMatchObject({ message });
    expect(await owner('x')).toBeNull();
  });

  it('accepts a ttl of 30 days', async () => {
    await using lock = await one.locks.acquire('month', { ttl: 30 * 24 * 3_600_000 });
    expect(lock.held).toBe(true);
    expect(await one.redis.pttl(`${one.prefix}:{month}`)).toBeGreaterThan(29 * 24 * 3_600_000);
  });
});
