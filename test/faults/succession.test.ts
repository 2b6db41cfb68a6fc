import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { LockLostError, LockUnavailableError } from '../../lib/index.js';
import type { AcquireOptions, Lock } from '../../lib/index.js';
import { BURN, PASS_ON } from '../../lib/redis/lock-scripts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import type { CountingProxy } from '../support/counting-proxy.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { privateRedis, sharedRedisUrl } from '../support/redis/test-redis.js';

describe('a lock that is passed on inside of a process', () => {
  let proxy: CountingProxy;
  let one: LockApplication;
  let other: LockApplication;

  beforeEach(async () => {
    proxy = await startCountingProxy(sharedRedisUrl());
    one = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      ttl: 4_000,
      commandTimeout: 600,
    });
    other = await startLocks({ keyPrefix: one.prefix });
    await warmUp(one);
  });
  afterEach(async () => {
    proxy.passReplies();
    proxy.passRequests();
    await other.app.close();
    other.redis.disconnect();
    await one.close();
    await proxy.close();
  });

  /** Every script is sent as text once, and looks different from then on. */
  const warmUp = async (of: LockApplication, { redis, prefix } = one) => {
    const held = await of.locks.acquire('warm');
    const next = of.locks.acquire('warm', { wait: 5_000 });
    await eventually(async () => (await redis.zcard(`${prefix}:queue:{warm}`)) === 1);
    await of.locks.tryAcquire('warm');
    await held.release();
    await (await next).release();
  };
  const ownerKey = () => `${one.prefix}:{passed}`;
  const owner = () => one.redis.get(ownerKey());
  const waiters = () => one.redis.zcard(`${one.prefix}:queue:{passed}`);
  const lastFencingToken = async () => Number(await one.redis.hget(`${one.prefix}:fence:{passed}`, 'last'));
  /** Starts to wait, and resolves when the place is taken and this process knows of it. */
  const queueUp = async (options: AcquireOptions = {}, from = one): Promise<{ lock: Promise<Lock> }> => {
    const before = await waiters();
    const lock = from.locks.acquire('passed', { wait: 10_000, ...options });
    lock.catch(() => undefined); // whoever looks at it hears of it
    await eventually(async () => (await waiters()) > before);
    await from.locks.tryAcquire('passed'); // its answer comes after that to the wish to wait
    return { lock };
  };

  it('is the next one’s before Redis has answered, with a fencing token of its own', async () => {
    const held = await one.locks.acquire('passed');
    const [first, second] = [await queueUp(), await queueUp()];
    proxy.holdReplies();
    const released = held.release();
    const mine = await first.lock;
    expect([mine.held, mine.fencingToken]).toEqual([true, held.fencingToken + 1]);
    void mine.release();
    const last = await second.lock;
    expect([mine.held, last.held, last.fencingToken]).toEqual([false, true, held.fencingToken + 2]);
    proxy.passReplies();
    await released;
    await eventually(async () => (await owner()) === last.token);
    expect([await lastFencingToken(), await waiters()]).toEqual([last.fencingToken, 0]);
    await last.extend();
    await last.release();
    expect(await owner()).toBeNull();
  });

  it('is known to Redis by whatever the next one sends', async () => {
    const held = await other.locks.acquire('passed');
    const seen: boolean[] = [];
    const turns: Promise<void>[] = [];
    for (let i = 0; i < 12; i += 1) {
      const { lock } = await queueUp({}, other);
      turns.push(
        lock.then(async (mine) => {
          // On the connection of the locks: there is no order between it and any other.
          seen.push((await other.locks.inspect('passed'))?.fencingToken === mine.fencingToken);
          await mine.release();
        }),
      );
    }
    void held.release();
    await Promise.all(turns);
    expect(seen).toEqual(Array.from({ length: 12 }, () => true));
  });

  it('does not pass by those who came earlier in other processes', async () => {
    const order: string[] = [];
    const held = await one.locks.acquire('passed');
    const turns: Promise<void>[] = [];
    for (const [name, from] of [
      ['a', one],
      ['b', one],
      ['elsewhere', other],
      ['c', one],
      ['d', one],
    ] as const) {
      const { lock } = await queueUp({}, from);
      turns.push(
        lock.then((mine) => {
          order.push(name);
          return mine.release();
        }),
      );
    }
    await held.release();
    await Promise.all(turns);
    expect(order).toEqual(['a', 'b', 'elsewhere', 'c', 'd']);
  });

  it('goes past those who have given up', async () => {
    const held = await one.locks.acquire('passed');
    const abort = new AbortController();
    const [gone, next] = [await queueUp({ signal: abort.signal }), await queueUp()];
    proxy.holdReplies();
    abort.abort();
    void held.release();
    const mine = await next.lock;
    proxy.passReplies();
    await expect(gone.lock).rejects.toMatchObject({ reason: 'aborted' });
    await eventually(async () => (await owner()) === mine.token);
    await mine.release();
    expect([await owner(), await waiters()]).toEqual([null, 0]);
  });

  it('lasts as long as the lease before it, until Redis has heard of it', async () => {
    const held = await one.locks.acquire('passed', { ttl: 1_000, autoExtend: false });
    const { lock } = await queueUp({ ttl: 1_200 });
    proxy.holdReplies();
    const left = held.remaining;
    void held.release().catch(() => undefined);
    const mine = await lock;
    expect(mine.remaining).toBeLessThanOrEqual(left);
    await eventually(() => mine.signal.aborted, 1_200);
    expect(mine.signal.reason).toBeInstanceOf(LockLostError);
  });

  it('is not passed on with too little left of the lease', async () => {
    const held = await one.locks.acquire('passed', { ttl: 1_000, autoExtend: false });
    const { lock } = await queueUp({ ttl: 4_000, autoExtend: false });
    const released = held.release();
    const mine = await lock;
    expect(mine.remaining).toBeGreaterThan(3_000); // from the first moment on
    await released;
    await mine.release();
  });

  it('is lost at once when the holder before had lost it without knowing', async () => {
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    const work = one.locks.withLock('passed', () => gate).catch((error: unknown) => error);
    await eventually(async () => (await owner()) !== null);
    const { lock } = await queueUp();
    await one.redis.set(ownerKey(), 'somebody else', 'PX', 4_000);
    finish();
    expect(await work).toBeInstanceOf(LockLostError);
    const mine = await lock;
    expect([mine.held, mine.signal.reason]).toEqual([false, expect.any(LockLostError)]);
    expect(await owner()).toBe('somebody else');
    await one.redis.del(ownerKey());
    await eventually(async () => (await waiters()) === 0);
  });

  it('stays the next one’s when the request is lost, and is told again', async () => {
    const shaky = await startFaultProxy(sharedRedisUrl());
    const behind = await startLocks({ connection: shaky.url, keyPrefix: one.prefix });
    await warmUp(behind);
    const held = await behind.locks.acquire('passed');
    const { lock } = await queueUp({}, behind);
    shaky.arm({ word: PASS_ON.sha, side: 'request', at: () => 0, how: 'cut' });
    const released = held.release();
    const mine = await lock;
    await released;
    expect(shaky.fired()).toBe(true);
    expect(await owner()).toBe(mine.token);
    await mine.extend();
    await mine.release();
    expect([await owner(), await waiters()]).toEqual([null, 0]);
    await behind.app.close();
    behind.redis.disconnect();
    await shaky.close();
  });

  it('is not disturbed by a request that arrives a second time, however late', async () => {
    const held = await one.locks.acquire('passed');
    const [first, second] = [await queueUp(), await queueUp()];
    await held.release();
    const mine = await first.lock;
    const keys = [ownerKey(), `${one.prefix}:queue:{passed}`, `${one.prefix}:fence:{passed}`];
    const again = () =>
      one.redis.eval(PASS_ON.text, 3, ...keys, mine.token, held.fencingToken + 1, held.token);
    const [, next = ''] = (await again()) as string[];
    expect([next.split(' ').length, await owner()]).toEqual([1, mine.token]);
    await mine.release();
    const last = await second.lock;
    expect([await again(), await owner(), await waiters()]).toEqual([[0], last.token, 0]);
    await last.release();
    expect([await again(), await owner(), await waiters()]).toEqual([[0], null, 0]);
  });

  it('stays the next one’s when the answer is lost', async () => {
    const held = await one.locks.acquire('passed');
    const { lock } = await queueUp();
    proxy.dropNextReply();
    await held.release();
    const mine = await lock;
    await mine.extend();
    expect(await owner()).toBe(mine.token);
    await mine.release();
    expect([await owner(), await waiters()]).toEqual([null, 0]);
  });

  it('is free in the end, also when Redis hears of the first of several only after the last', async () => {
    const shaky = await startFaultProxy(sharedRedisUrl());
    const behind = await startLocks({ connection: shaky.url, keyPrefix: one.prefix });
    await warmUp(behind);
    const held = await behind.locks.acquire('passed');
    const [first, second] = [await queueUp({}, behind), await queueUp({}, behind)];
    shaky.arm({ word: PASS_ON.sha, side: 'request', at: () => 0, how: 'cut' });
    const releases = [held.release()];
    releases.push((await first.lock).release());
    const last = await second.lock;
    releases.push(last.release());
    await Promise.all(releases);
    expect([await owner(), await waiters()]).toEqual([null, 0]);
    const next = await other.locks.acquire('passed');
    expect(next.fencingToken).toBeGreaterThan(last.fencingToken);
    await next.release();
    await behind.app.close();
    behind.redis.disconnect();
    await shaky.close();
  });

  it('is given back when nobody could tell Redis in time', async () => {
    const held = await one.locks.acquire('passed');
    const { lock } = await queueUp();
    proxy.holdReplies();
    const first = held.release().catch((error: unknown) => error);
    const second = (await lock).release().catch((error: unknown) => error);
    expect(await first).toBeInstanceOf(LockUnavailableError);
    expect(await second).toBeInstanceOf(LockUnavailableError);
    proxy.passReplies();
    await eventually(async () => (await owner()) === null);
    expect(await waiters()).toBe(0);
  });

  it('can be committed under as soon as Redis has heard of it, and not before', async () => {
    const held = await one.locks.acquire('passed');
    let began = false;
    const committed = one.locks.withLock('passed', { wait: 5_000 }, ({ multi }) => {
      began = true;
      multi.incr(one.key('sum'));
    });
    await eventually(async () => (await waiters()) === 1);
    await one.locks.tryAcquire('passed');
    proxy.holdRequestsWith(PASS_ON.sha);
    const released = held.release();
    await eventually(() => began);
    await one.redis.ping();
    expect(await one.redis.get(one.key('sum'))).toBeNull();
    proxy.passRequests();
    await Promise.all([released, committed]);
    expect([await one.redis.get(one.key('sum')), await owner()]).toEqual(['1', null]);
  });

  it('lasts no longer than its own ttl, until Redis has answered', async () => {
    const held = await one.locks.acquire('passed', { ttl: 10_000 });
    const { lock } = await queueUp({ ttl: 300 });
    const foreign = await queueUp({}, other);
    proxy.holdReplies();
    void held.release().catch(() => undefined);
    const mine = await lock;
    expect(mine.remaining).toBeLessThanOrEqual(300);
    const theirs = await foreign.lock;
    expect([mine.held, theirs.held, await owner()]).toEqual([false, true, theirs.token]);
    await theirs.release();
  });

  it('counts from the first request, when Redis answers only the second one', async () => {
    const held = await one.locks.acquire('passed', { ttl: 1_500, autoExtend: false });
    const { lock } = await queueUp({ ttl: 1_500, autoExtend: false });
    const foreign = await queueUp({}, other);
    proxy.holdReplies();
    proxy.reset();
    const released = held.release().catch((error: unknown) => error);
    const mine = await lock;
    await eventually(() => proxy.roundTrips() > 1); // it was told again
    proxy.passReplies();
    await released;
    const theirs = await foreign.lock;
    expect([mine.held, theirs.held, await owner()]).toEqual([false, true, theirs.token]);
    await theirs.release();
  });

  it('is not passed on while a commit is under way, which is then refused', async () => {
    let outcome: unknown;
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    let begin = () => undefined as void;
    const queued = new Promise<void>((resolve) => (begin = resolve));
    const work = one.locks.withLock('passed', async ({ multi, commit }) => {
      await queued;
      multi.set(one.key('by-the-first'), 1);
      void commit().then(
        (replies) => (outcome = replies),
        (error: unknown) => (outcome = error),
      );
      await gate;
    });
    work.catch(() => undefined); // heard of below
    await eventually(async () => (await owner()) !== null);
    const { lock } = await queueUp();
    proxy.holdRequestsWith(one.key('by-the-first'));
    proxy.reset();
    begin();
    await eventually(() => proxy.roundTrips() > 0); // the commit is under way
    proxy.holdRequestsWith(PASS_ON.sha);
    finish();
    const mine = await lock;
    const before = await one.redis.get(one.key('by-the-first'));
    proxy.passRequests();
    await eventually(() => outcome !== undefined);
    expect([before, await one.redis.get(one.key('by-the-first')), mine.held]).toEqual([null, null, true]);
    expect(outcome).toBeInstanceOf(LockLostError);
    await work.catch(() => undefined);
    await mine.release();
  });

  it('is not kept by two when an operator takes it away at that moment', async () => {
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    const work = one.locks.withLock('passed', () => gate).catch((error: unknown) => error);
    await eventually(async () => (await owner()) !== null);
    const { lock } = await queueUp({ autoExtend: false });
    const foreign = await queueUp({}, other);
    proxy.holdRequestsWith(PASS_ON.sha);
    finish();
    const mine = await lock;
    await other.locks.forceRelease('passed');
    proxy.passRequests();
    expect(await work).toBeInstanceOf(LockLostError);
    const theirs = await foreign.lock;
    expect([mine.held, theirs.held, await owner()]).toEqual([false, true, theirs.token]);
    await theirs.release();
  });

  it('leaves the holder before without a reproach when the next one gives it up before Redis has heard', async () => {
    const server = await privateRedis();
    const alone = await startLocks({ url: server.url, ttl: 4_000 });
    await warmUp(alone, alone);
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    const work = alone.locks.withLock('passed', () => gate);
    await eventually(async () => (await alone.redis.exists(`${alone.prefix}:{passed}`)) === 1);
    const abort = new AbortController();
    const remove = abort.signal.removeEventListener.bind(abort.signal);
    // As late as can be: when it has the lock, and is about to begin.
    abort.signal.removeEventListener = (...args: Parameters<typeof remove>) => {
      remove(...args);
      queueMicrotask(() => abort.abort());
    };
    const lock = alone.locks.acquire('passed', { wait: 5_000, signal: abort.signal });
    await eventually(async () => (await alone.redis.zcard(`${alone.prefix}:queue:{passed}`)) === 1);
    await alone.locks.tryAcquire('passed');
    // Redis asks for the script first, and hears meanwhile that the lock is given up.
    await alone.redis.script('FLUSH');
    await alone.redis.script('LOAD', BURN.text);
    finish();
    await expect(work).resolves.toBeUndefined();
    await expect(lock).rejects.toMatchObject({ reason: 'aborted' });
    await eventually(async () => (await alone.redis.exists(`${alone.prefix}:{passed}`)) === 0);
    await alone.close();
    await server.stop();
  });

  it('can be extended as soon as Redis has heard of it, also after an error in the way', async () => {
    const fence = `${one.prefix}:fence:{passed}`;
    const held = await one.locks.acquire('passed');
    const { lock } = await queueUp();
    await one.redis.rename(fence, `${fence}:aside`);
    await one.redis.set(fence, 'of a wrong type');
    await expect(held.release()).rejects.toBeInstanceOf(LockUnavailableError);
    const mine = await lock;
    await one.redis.rename(`${fence}:aside`, fence);
    await mine.extend();
    expect(await owner()).toBe(mine.token);
    await mine.release();
  });

  it('never repeats a fencing token that a dead process gave itself, even with a clock behind', async () => {
    const ahead = (Date.now() + 60_000) * 1_000;
    await one.redis.hset(`${one.prefix}:fence:{passed}`, 'last', ahead);
    const held = await one.locks.acquire('passed', { ttl: 400, autoExtend: false });
    const [first, second] = [await queueUp({ ttl: 400 }), await queueUp({ ttl: 400 })];
    proxy.holdRequestsWith(PASS_ON.sha); // and whatever comes after: as if the process had died here
    void held.release().catch(() => undefined);
    const mine = await first.lock;
    void mine.release().catch(() => undefined);
    const last = await second.lock;
    const next = await other.locks.acquire('passed', { wait: 5_000 });
    expect(last.held).toBe(false);
    expect(next.fencingToken).toBeGreaterThan(last.fencingToken);
    await next.release();
  });

  it('is released when the application closes before Redis has heard of it', async () => {
    const held = await one.locks.acquire('passed');
    const { lock } = await queueUp();
    proxy.holdReplies(PASS_ON.sha);
    void held.release().catch(() => undefined);
    const mine = await lock;
    const closed = one.app.close();
    proxy.passReplies();
    await closed;
    expect(mine.held).toBe(false);
    expect([await owner(), await waiters()]).toEqual([null, 0]);
  });
});
