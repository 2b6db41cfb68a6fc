import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockLostError, LockNotAcquiredError } from '../../lib/index.js';
import type { Lock } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

describe('a lock that is acquired inside of a scope that has it', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);

  /** Work that notices when others are inside at the same time. */
  function section() {
    let inside = 0;
    const seen: number[] = [];
    const enter = async () => {
      seen.push((inside += 1));
      await one.redis.ping();
      inside -= 1;
    };
    return { seen, enter };
  }

  it('takes turns with its siblings, those that acquired it and those by withLock()', async () => {
    const { seen, enter } = section();
    const acquired = async () => {
      await using _lock = await one.locks.acquire('siblings');
      await enter();
    };
    await one.locks.withLock('siblings', async ({ lock }) => {
      await Promise.all([
        acquired(),
        acquired(),
        one.locks.withLock('siblings', enter),
        acquired(),
        one.locks.withLock('siblings', enter),
      ]);
      expect(await owner('siblings')).toBe(lock.token);
    });
    expect(seen).toEqual([1, 1, 1, 1, 1]);
  });

  it('with another one takes turns for the part that the scope has', async () => {
    const { seen, enter } = section();
    const wanted = ['part:a', 'part:b'];
    await one.locks.withLock('part:a', async () => {
      await Promise.all(
        [1, 2, 3].map(async () => {
          await using lock = await one.locks.acquire(wanted);
          expect(lock.resources).toEqual(['part:b']);
          await enter();
        }),
      );
      const tried = await one.locks.tryAcquire(wanted);
      expect(await one.locks.tryAcquire('part:a')).toBeNull();
      await tried?.release();
      await (await one.locks.tryAcquire('part:a'))?.release();
    });
    expect(seen).toEqual([1, 1, 1]);
  });

  it('by tryAcquire() is null while somebody else has a turn, and is held otherwise', async () => {
    await one.locks.withLock('tried', async ({ lock }) => {
      const first = await one.locks.tryAcquire('tried');
      expect(first?.token).toBe(lock.token);
      expect(await one.locks.tryAcquire('tried')).toBeNull();
      await first?.release();
      await one.locks.withLock('tried', async () => {
        // Inside of the one whose turn it is, but for its siblings.
        const [one_, two] = await Promise.all([one.locks.tryAcquire('tried'), one.locks.tryAcquire('tried')]);
        expect([one_?.held, two]).toEqual([true, null]);
      });
      const working = one.locks.withLock('tried', () => one.redis.ping());
      expect(await one.locks.tryAcquire('tried')).toBeNull();
      await working;
      await (await one.locks.tryAcquire('tried'))?.release();
    });
  });

  it('is given up on after `wait`, and when the signal is aborted', async () => {
    await one.locks.withLock('patience', async () => {
      const aborted = one.locks.tryAcquire('patience', { signal: AbortSignal.abort() });
      await expect(aborted).rejects.toMatchObject({ reason: 'aborted' });
      await using _lock = await one.locks.acquire('patience');
      for (const wanting of [
        one.locks.acquire('patience', { wait: 20 }),
        one.locks.withLock('patience', { wait: 20 }, () => 1),
      ]) {
        await expect(wanting).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'timeout' });
      }
      for (const signal of [AbortSignal.timeout(20), AbortSignal.abort()]) {
        const wanting = one.locks.acquire('patience', { wait: 5_000, signal });
        await expect(wanting).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'aborted' });
      }
    });
  });

  it('does not have the code that acquired it wait for itself for ever: the error says what to do', async () => {
    const key = one.key('itself');
    await one.locks.withLock('itself', async ({ multi }) => {
      const lock = await one.locks.acquire('itself');
      for (const wanting of [
        one.locks.withLock('itself', { ttl: 50 }, () => 'never'),
        one.locks.acquire('itself', { ttl: 50 }),
      ]) {
        const error = await wanting.catch((reason: unknown) => reason);
        expect(error).toBeInstanceOf(LockNotAcquiredError);
        expect(String((error as Error).cause)).toMatch(/release the lock first, or use withLock\(\)/);
      }
      await lock.release();
      await one.locks.withLock('itself', (inner) => inner.multi.rpush(key, 'after the release'));
      multi.rpush(key, 'outer');
    });
    expect(await one.redis.lrange(key, 0, -1)).toEqual(['after the release', 'outer']);
  });

  it('and never released ends with the work, does not keep the scope open, and its signal is aborted', async () => {
    let kept: Lock | undefined;
    let waiting: Promise<unknown> | undefined;
    let sibling: Promise<unknown> | undefined;
    await one.locks.withLock('kept', async () => {
      kept = await one.locks.acquire('kept');
      waiting = one.locks.acquire('kept', { wait: Infinity }).catch((error: unknown) => error);
      sibling = one.locks.withLock('kept', { wait: Infinity }, async ({ multi }) => {
        expect([kept?.held, kept?.signal.aborted]).toEqual([false, true]);
        multi.incr(one.key('kept'));
      });
    });
    await sibling;
    expect(await waiting).toBeInstanceOf(LockLostError);
    expect([await one.redis.get(one.key('kept')), await owner('kept')]).toEqual(['1', null]);
    expect(kept?.signal.reason).toMatchObject({ message: expect.stringContaining('has ended') });
    expect(kept?.remaining).toBe(0);
    await expect(kept?.extend()).rejects.toThrow('has ended');
    await kept?.release();
  });

  it('is not had when the scope has lost it', async () => {
    const work = one.locks.withLock('lost', { retries: 0 }, async ({ signal, lock }) => {
      const sibling = await one.locks.acquire('lost');
      const waiting = one.locks.acquire('lost').catch((error: unknown) => error);
      await other.redis.del(`${one.prefix}:{lost}`);
      await lock.extend().catch(() => undefined);
      await eventually(() => signal.aborted);
      expect(sibling.held).toBe(false);
      expect(await waiting).toBeInstanceOf(LockLostError);
      await sibling.release();
      await expect(one.locks.acquire('lost')).rejects.toBeInstanceOf(LockLostError);
      await expect(one.locks.tryAcquire('lost')).rejects.toBeInstanceOf(LockLostError);
    });
    await expect(work).rejects.toBeInstanceOf(LockLostError);
  });
});
