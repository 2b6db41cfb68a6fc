import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { LockLostError, LockOutcomeUnknownError, LockUnavailableError } from '../../lib/index.js';
import type { Lock } from '../../lib/index.js';
import { RENEW } from '../../lib/redis/lock-scripts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import type { CountingProxy } from '../support/counting-proxy.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

describe('a reply that is lost', () => {
  let proxy: CountingProxy;
  let one: LockApplication;
  let another: LockApplication;
  const other = () => another.locks;

  beforeEach(async () => {
    proxy = await startCountingProxy(sharedRedisUrl());
    one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, commandTimeout: 600 });
    another = await startLocks({ keyPrefix: one.prefix });
  });
  afterEach(async () => {
    proxy.passReplies();
    await another.app.close();
    another.redis.disconnect();
    await one.close();
    await proxy.close();
  });

  const ownerKey = (resource: string) => `${one.prefix}:{${resource}}`;
  const isFree = async (resource: string) => (await one.redis.exists(ownerKey(resource))) === 0;

  it('to an acquire is asked for again, and the lock is held once', async () => {
    await (await one.locks.acquire('warm')).release();
    proxy.dropNextReply();
    const lock = await one.locks.acquire('asked-again');
    expect(await one.redis.get(ownerKey('asked-again'))).toBe(lock.token);
    await lock.release();
    expect(await isFree('asked-again')).toBe(true);
  });

  it('case 27: an acquire that timed out but was granted is given back', async () => {
    await (await one.locks.acquire('warm')).release();
    proxy.holdReplies();
    const refusal = await one.locks.acquire('orphan').catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(LockUnavailableError);
    expect(await isFree('orphan')).toBe(false);
    proxy.passReplies();
    await eventually(() => isFree('orphan'), 1_000);
  });

  it('to a commit, of which Redis has lost what it knew, is an unknown outcome: the work does not run again', async () => {
    await one.locks.withLock('forgotten', ({ multi }) => multi.set(one.key('warm'), 1));
    let runs = 0;
    const call = one.locks
      .withLock('forgotten', ({ multi }) => {
        runs += 1;
        multi.incr(one.key('forgotten'));
        if (runs === 1) proxy.holdReplies(one.key('warm')); // on the connection of commits
      })
      .catch((error: unknown) => error);
    await eventually(async () => (await one.redis.get(one.key('forgotten'))) === '1');
    await one.redis.del(`${one.prefix}:fence:{forgotten}`);
    expect(await call).toBeInstanceOf(LockOutcomeUnknownError);
    expect([runs, await one.redis.get(one.key('forgotten'))]).toEqual([1, '1']);
  });

  it('to a wish to wait leaves no place behind, however late it is', async () => {
    await using _held = await other().acquire('late-place', { ttl: 5_000 });
    await (await one.locks.acquire('warm', { wait: 1_000 })).release();
    proxy.holdReplies();
    await expect(one.locks.acquire('late-place', { wait: 5_000 })).rejects.toBeInstanceOf(
      LockUnavailableError,
    );
    proxy.passReplies();
    await one.locks.inspect('late-place'); // Redis is to be had again
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{late-place}`)) === 0, 2_000);
  });

  it('does not silence a service for ever: it makes new connections until one is answered', async () => {
    await (await one.locks.acquire('warm')).release();
    proxy.holdReplies();
    proxy.reset();
    await expect(one.locks.acquire('silence')).rejects.toBeInstanceOf(LockUnavailableError);
    // The request, and then several connections on which nothing is answered either.
    await eventually(() => proxy.roundTrips() >= 4, 8_000);
    proxy.passReplies();
    await eventually(async () => {
      const lock = await one.locks.acquire('silence').catch(() => undefined);
      await lock?.release();
      return lock !== undefined;
    });
  });

  it('to a release does not hide the result, and the lock is free', async () => {
    await (await one.locks.acquire('warm')).release();
    const result = await one.locks.withLock('released', () => {
      proxy.dropNextReply();
      return 'mine';
    });
    expect(result).toBe('mine');
    await eventually(() => isFree('released'), 1_000);
  });

  it('to a release that comes too late is a rejection of release(), and the lock is given back', async () => {
    const lock = await one.locks.acquire('late-release');
    proxy.holdReplies();
    await expect(lock.release()).rejects.toBeInstanceOf(LockUnavailableError);
    expect(lock.held).toBe(false);
    proxy.passReplies();
    await eventually(() => isFree('late-release'), 1_000);
  });

  it('case 16: to a commit that was applied is settled as a success, applied once', async () => {
    await one.locks.withLock('settled', ({ multi }) => multi.set(one.key('warm'), 1));
    const result = await one.locks.withLock('settled', ({ multi }) => {
      multi.incr(one.key('settled'));
      proxy.dropNextReply();
      return 'mine';
    });
    expect(result).toBe('mine');
    expect(await one.redis.get(one.key('settled'))).toBe('1');
    expect(await isFree('settled')).toBe(true);
  });

  it('case 18c: to a commit that may still arrive makes sure that it never applies before it says so', async () => {
    await one.locks.withLock('held-up', ({ multi }) => multi.set(one.key('warm'), 1));
    proxy.holdRequestsWith('watch');
    const verdict = await one.locks
      .withLock('held-up', { retries: 0 }, ({ multi }) => multi.incr(one.key('held-up')))
      .catch((error: unknown) => error);
    expect(verdict).toBeInstanceOf(LockLostError);
    expect(await one.redis.get(one.key('held-up'))).toBeNull();
    proxy.passRequests();
    await one.locks.withLock('held-up', () => 'next');
    expect(await one.redis.get(one.key('held-up'))).toBeNull();
  });

  it('to a commit() in between is said to be lost, and the work does not run again', async () => {
    let runs = 0;
    const error = await one.locks
      .withLock('stages', async ({ multi, commit, signal }) => {
        runs += 1;
        multi.incr(one.key('stages'));
        proxy.dropNextReply();
        await expect(commit()).rejects.toBeInstanceOf(LockOutcomeUnknownError);
        expect(signal.aborted).toBe(true); // the lock was given up to find out
        multi.incr(one.key('stages'));
      })
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(LockLostError);
    expect([runs, await one.redis.get(one.key('stages'))]).toEqual([1, '1']);
  });

  it('to a commit() in between, and then to the question what became of it, tells the holder before anybody else has the lock', async () => {
    await one.locks.withLock('given-up', ({ multi }) => multi.set(one.key('warm'), 1));
    let holder: Lock | undefined;
    const work = one.locks
      .withLock('given-up', { ttl: 5_000, retries: 0 }, async ({ multi, commit, lock }) => {
        multi.incr(one.key('given-up'));
        proxy.dropNextReply();
        proxy.holdReplies();
        holder = lock;
        await commit();
      })
      .catch((error: unknown) => error);
    await eventually(() => holder !== undefined);
    await using _next = await other().acquire('given-up', { wait: 5_000 });
    expect([holder?.held, holder?.remaining, holder?.signal.aborted]).toEqual([false, 0, true]);
    expect(holder?.signal.reason).toBeInstanceOf(LockLostError);
    proxy.passReplies();
    expect(await work).toBeInstanceOf(LockOutcomeUnknownError); // its replies were lost
    expect(await one.redis.get(one.key('given-up'))).toBe('1');
  });

  it('to the last commit has its holder count on nothing any more, and is no loss when it was applied', async () => {
    await one.locks.withLock('leaving', ({ multi }) => multi.set(one.key('warm'), 1));
    for (const lose of [() => undefined, () => proxy.dropNextReply()]) {
      let holder: Lock | undefined;
      const work = one.locks.withLock('leaving', { ttl: 5_000, retries: 0 }, ({ multi, lock }) => {
        multi.incr(one.key('leaving'));
        lose();
        proxy.holdReplies();
        holder = lock;
      });
      await eventually(() => holder !== undefined);
      const next = await other().acquire('leaving', { wait: 5_000 });
      expect([holder?.held, holder?.remaining, holder?.signal.aborted]).toEqual([false, 0, false]);
      proxy.passReplies();
      await work;
      expect([holder?.held, holder?.signal.aborted]).toEqual([false, false]);
      await next.release();
    }
    expect(await one.redis.get(one.key('leaving'))).toBe('2');
  });

  it('to the last commit, and a renewal that comes after it, are no loss', async () => {
    await one.locks.withLock('overtaken', ({ multi }) => multi.set(one.key('warm'), 1));
    let holder: Lock | undefined;
    const work = one.locks.withLock('overtaken', { ttl: 600, retries: 0 }, async ({ multi, lock }) => {
      holder = lock;
      multi.incr(one.key('overtaken'));
      proxy.holdRequestsWith(RENEW.sha);
      await eventually(() => proxy.heldRequests() > 0);
      proxy.holdReplies('watch'); // to commits
    });
    await eventually(async () => (await one.redis.get(one.key('overtaken'))) === '1');
    proxy.passRequests();
    await one.locks.inspect('overtaken'); // answered after the renewal
    expect([holder?.held, holder?.signal.aborted]).toEqual([false, false]);
    proxy.passReplies();
    await work;
    expect(holder?.signal.aborted).toBe(false);
  });

  it('to the last commit that was not applied is a loss that its signal tells', async () => {
    await one.locks.withLock('not-applied', ({ multi }) => multi.set(one.key('warm'), 1));
    proxy.holdRequestsWith('watch');
    let holder: Lock | undefined;
    const work = one.locks.withLock('not-applied', { ttl: 5_000, retries: 0 }, ({ multi, lock }) => {
      multi.incr(one.key('not-applied'));
      holder = lock;
    });
    await expect(work).rejects.toBeInstanceOf(LockLostError);
    expect([holder?.held, holder?.signal.aborted]).toEqual([false, true]);
    proxy.passRequests();
  });

  it('to a commit that was applied is told to those who wanted to hear it', async () => {
    const heard: unknown[] = [];
    const error = await one.locks
      .withLock('listened', ({ multi, afterCommit }) => {
        afterCommit((replies) => heard.push(replies));
        multi.incr(one.key('listened'));
        proxy.dropNextReply();
      })
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(LockOutcomeUnknownError);
    expect((error as Error).message).toContain('was applied');
    expect([heard, await one.redis.get(one.key('listened'))]).toEqual([[], '1']);
  });

  it('to a commit of joined work that was applied is a success where nobody wanted to hear the replies', async () => {
    const outer = one.locks.withLock('joined', { transaction: false, onLost: 'report' }, () =>
      one.locks.withLock('joined', ({ multi }) => {
        multi.incr(one.key('joined'));
        proxy.dropNextReply();
        return 'mine';
      }),
    );
    expect([await outer, await one.redis.get(one.key('joined'))]).toEqual(['mine', '1']);
  });

  it('to a commit that was applied is settled as such although the fence was deleted before', async () => {
    const result = await one.locks.withLock('fenceless', async ({ multi }) => {
      multi.incr(one.key('fenceless'));
      await one.redis.del(`${one.prefix}:fence:{fenceless}`);
      proxy.dropNextReply();
      return 'mine';
    });
    expect([result, await one.redis.get(one.key('fenceless'))]).toEqual(['mine', '1']);
  });

  it('to one commit after the other leaves no connection open', async () => {
    const before = proxy.clients();
    const many = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, commandTimeout: 100 });
    for (let i = 0; i < 8; i += 1) {
      await many.locks
        .withLock(`x${i}`, { retries: 0 }, ({ multi }) => {
          multi.incr(many.key('x'));
          if (i % 2) proxy.dropNextReply();
          else proxy.holdRequestsWith('watch');
        })
        .catch(() => undefined);
      proxy.passRequests();
    }
    await many.close();
    await eventually(() => proxy.clients() === before);
  });

  it('to a commit, and silence to the end of the lease, is an unknown outcome', async () => {
    await one.locks.withLock('silent', ({ multi }) => multi.set(one.key('warm'), 1));
    const outcome = await one.locks
      .withLock('silent', { ttl: 700, retries: 0 }, ({ multi }) => {
        multi.set(one.key('silent'), 1);
        proxy.holdReplies();
      })
      .catch((error: unknown) => error);
    expect(outcome).toBeInstanceOf(LockOutcomeUnknownError);
    expect(outcome).toMatchObject({ code: 'LOCK_OUTCOME_UNKNOWN' });
  });

  it('to a renewal, and late, is no reason not to renew a lease that was made shorter meanwhile', async () => {
    const lock = await one.locks.acquire('shorter', { ttl: 1_500 });
    proxy.reset();
    proxy.holdReplies();
    await eventually(() => proxy.roundTrips() > 0); // renewed, after a third
    const extended = lock.extend(300);
    proxy.passReplies();
    await extended;
    const since = performance.now();
    await elapse(400, since);
    expect([lock.held, await one.redis.get(ownerKey('shorter'))]).toEqual([true, lock.token]);
    await lock.release();
  });

  it('to everything tells the holder of the loss by the end of the lease', async () => {
    const lock = await one.locks.acquire('unreachable', { ttl: 400 });
    proxy.holdReplies();
    await eventually(() => lock.signal.aborted, 2_000);
    expect(lock.signal.reason).toBeInstanceOf(LockLostError);
  });
});
