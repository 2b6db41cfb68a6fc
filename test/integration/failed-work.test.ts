import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockLostError, LockScopeError, LockTransactionError } from '../../lib/index.js';
import type { LockContext } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

/** A promise, and what resolves it. */
function gate() {
  let open = () => undefined as void;
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { opened, open };
}

describe('what was queued', () => {
  let one: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
  });
  afterAll(() => closeAll(one));

  const list = (name: string) => one.redis.lrange(one.key(name), 0, -1);
  const refuse = ({ multi }: LockContext) => {
    expect(() => (multi as unknown as { exec(): void }).exec()).toThrow(LockTransactionError);
  };

  it('by work that has thrown is not applied by the commit() of a sibling that still runs', async () => {
    const key = one.key('thrown');
    const own = new Error('mine');
    const thrown = gate();
    const work = one.locks.withLock('thrown', async ({ multi }) => {
      multi.rpush(key, 'of the work that throws');
      void one.locks.withLock('thrown', async (sibling) => {
        await thrown.opened;
        sibling.multi.rpush(key, 'of the sibling');
        expect(await sibling.commit()).toEqual([1]);
      });
      setImmediate(thrown.open);
      throw own;
    });
    await expect(work).rejects.toBe(own);
    expect(await list('thrown')).toEqual(['of the sibling']);
  });

  it('by work in the middle that has thrown is not applied either, and what the outer work had queued is', async () => {
    const key = one.key('middle');
    const own = new Error('mine');
    const thrown = gate();
    await one.locks.withLock('middle', async ({ multi }) => {
      multi.rpush(key, 'outer');
      const middle = one.locks.withLock('middle', async (context) => {
        context.multi.rpush(key, 'middle');
        void one.locks.withLock('middle', async (inner) => {
          await thrown.opened;
          inner.multi.rpush(key, 'inner');
          await inner.commit();
          inner.multi.rpush(key, 'handed in to work that has thrown');
        });
        setImmediate(thrown.open);
        throw own;
      });
      await expect(middle).rejects.toBe(own);
    });
    expect(await list('middle')).toEqual(['outer', 'inner']);
  });

  it('cannot be added to by what still runs of work that has thrown', async () => {
    const thrown = gate();
    const refused: unknown[] = [];
    const work = one.locks.withLock('refused', async (context) => {
      void one.locks.withLock('refused', async () => {
        await thrown.opened;
        for (const use of [() => context.multi, () => context.afterCommit(() => undefined)]) {
          try {
            use();
          } catch (error) {
            refused.push(error);
          }
        }
        refused.push(await context.commit().catch((error: unknown) => error));
        expect(context.lock.held).toBe(true);
      });
      setImmediate(thrown.open);
      throw new Error('mine');
    });
    await expect(work).rejects.toThrow('mine');
    expect(refused).toHaveLength(3);
    for (const error of refused) {
      expect(error).toBeInstanceOf(LockScopeError);
      expect(error).toMatchObject({ message: expect.stringContaining('has failed') });
    }
  });

  it.each([
    ['the same lock', 'between:a'],
    ['another lock', 'between:b'],
    ['both locks', ['between:a', 'between:b']],
  ])('by a call inside of work under %s is dropped when that work fails', async (_which, between) => {
    const key = one.key('between');
    await one.redis.del(key);
    const heard: string[] = [];
    await one.locks.withLock('between:a', async ({ multi }) => {
      const failed = one.locks.withLock(between, async () => {
        await one.locks.withLock('between:a', (inner) => {
          inner.multi.rpush(key, 'inside of failed work');
          inner.afterCommit(() => heard.push('inside of failed work'));
        });
        throw new Error('mine');
      });
      await expect(failed).rejects.toThrow('mine');
      multi.rpush(key, 'outer');
    });
    expect([await list('between'), heard]).toEqual([['outer'], []]);
  });

  it('by a call inside of work under another lock is dropped when the commit of that work is refused', async () => {
    const key = one.key('refused-between');
    await one.locks.withLock('refused-between:a', async ({ multi }) => {
      const failed = one.locks.withLock('refused-between:b', { retries: 0 }, async (between) => {
        await one.locks.withLock('refused-between:a', (inner) => inner.multi.rpush(key, 'dropped'));
        between.multi.rpush(one.key('never'), 1);
        await one.redis.del(`${one.prefix}:{refused-between:b}`);
      });
      await expect(failed).rejects.toBeInstanceOf(LockLostError);
      multi.rpush(key, 'outer');
    });
    expect(await list('refused-between')).toEqual(['outer']);
  });

  it('by a call inside of work under another lock is applied once when that work runs again', async () => {
    const key = one.key('again-between');
    let runs = 0;
    await one.locks.withLock('again-between:a', async () => {
      await one.locks.withLock('again-between:b', async (between) => {
        runs += 1;
        await one.locks.withLock('again-between:a', (inner) => inner.multi.rpush(key, `run ${runs}`));
        between.multi.incr(one.key('again-between:count'));
        if (runs === 1) await one.redis.del(`${one.prefix}:{again-between:b}`);
      });
    });
    expect(await list('again-between')).toEqual(['run 2']);
  });

  it('by calls inside of work under other locks, deep down, is committed by the outer work, in order', async () => {
    const key = one.key('deep');
    await one.locks.withLock('deep:a', async ({ multi }) => {
      multi.rpush(key, 'first');
      await one.locks.withLock('deep:b', () =>
        one.locks.withLock('deep:c', async () => {
          await one.locks.withLock('deep:a', (inner) => inner.multi.rpush(key, 'second'));
          await one.locks.withLock('deep:a', (inner) => inner.multi.rpush(key, 'third'));
        }),
      );
      expect(await list('deep')).toEqual([]);
      multi.rpush(key, 'fourth');
    });
    expect(await list('deep')).toEqual(['first', 'second', 'third', 'fourth']);
  });

  it('before it, inside of work under another lock that still runs, is applied by a commit() there', async () => {
    const key = one.key('early-between');
    await one.locks.withLock('early-between:a', async ({ multi }) => {
      multi.rpush(key, 'outer');
      await one.locks.withLock('early-between:b', async () => {
        await one.locks.withLock('early-between:a', (inner) => inner.multi.rpush(key, 'handed in'));
        await one.locks.withLock('early-between:a', async (inner) => {
          inner.multi.rpush(key, 'committed');
          expect(await inner.commit()).toEqual([3]);
        });
      });
    });
    expect(await list('early-between')).toEqual(['outer', 'handed in', 'committed']);
  });

  it('inside of work under another lock that nobody waits for is committed by the outer work, which waits', async () => {
    const key = one.key('forgotten');
    const { opened, open } = gate();
    let handedIn = false;
    const outer = one.locks.withLock('forgotten:a', async () => {
      void one.locks.withLock('forgotten:b', async () => {
        await one.locks.withLock('forgotten:a', (inner) => inner.multi.rpush(key, 'handed in'));
        handedIn = true;
        await opened;
      });
      await eventually(async () => handedIn);
    });
    await one.redis.ping();
    expect(await one.redis.exists(`${one.prefix}:{forgotten:a}`)).toBe(1);
    open();
    await outer;
    expect(await list('forgotten')).toEqual(['handed in']);
  });

  it('by the outer work survives a commit() in joined work of which a command was refused', async () => {
    const key = one.key('survives');
    await one.locks.withLock('survives', async ({ multi }) => {
      multi.rpush(key, 'before');
      const joined = one.locks.withLock('survives', async (context) => {
        refuse(context);
        await one.locks.withLock('survives', async (inner) => {
          inner.multi.rpush(key, 'inner');
          await inner.commit();
        });
      });
      await expect(joined).rejects.toBeInstanceOf(LockTransactionError);
      multi.rpush(key, 'after');
    });
    expect(await list('survives')).toEqual(['before', 'after']);
  });

  it('is not committed by work with transaction: false, whose commit() is refused', async () => {
    const key = one.key('plain');
    const own = new Error('mine');
    const work = one.locks.withLock('plain', async ({ multi }) => {
      multi.rpush(key, 'outer');
      const plain = one.locks.withLock('plain', { transaction: false }, ({ commit }) => commit());
      await expect(plain).rejects.toBeInstanceOf(LockScopeError);
      throw own;
    });
    await expect(work).rejects.toBe(own);
    expect(await list('plain')).toEqual([]);
  });
});

describe('a commit() that the work did not wait for', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  it.each([
    ['a short name', 'unawaited', false],
    ['a long name', 'unawaited'.repeat(40), false],
    ['a watched key', 'unawaited', true],
  ])('is applied before the call ends, under %s', async (_which, resource, isWatching) => {
    const key = one.key('unawaited');
    await one.redis.del(key);
    let ended: Promise<unknown> | undefined;
    await one.locks.withLock(resource, async ({ multi, commit, watch }) => {
      if (isWatching) await watch(one.key('watched'));
      multi.incr(key);
      ended = commit();
    });
    expect(await one.redis.get(key)).toBe('1');
    await expect(ended).resolves.toEqual([1]);
  });

  it('by an injected LockContext is applied before the call ends as well', async () => {
    const key = one.key('injected');
    await one.locks.withLock('x'.repeat(400), async () => {
      one.context.multi.incr(key);
      void one.context.commit();
    });
    expect(await one.redis.get(key)).toBe('1');
  });

  it('fails the call when it is refused', async () => {
    await one.redis.set(one.key('text'), 'text');
    const work = one.locks.withLock('refused', ({ multi, commit }) => {
      multi.lpush(one.key('text'), 'x');
      void commit();
      return 'the result';
    });
    await expect(work).rejects.toMatchObject({ code: 'LOCK_TRANSACTION_FAILED', applied: 'none' });
    expect(await one.redis.exists(`${one.prefix}:{refused}`)).toBe(0);
  });

  it('has the work run again when the lock was lost before it', async () => {
    const key = one.key('again');
    let runs = 0;
    await one.locks.withLock('again', async ({ multi, commit }) => {
      runs += 1;
      multi.incr(key);
      if (runs === 1) await other.redis.del(`${one.prefix}:{again}`);
      void commit();
    });
    expect([runs, await one.redis.get(key)]).toEqual([2, '1']);
  });

  it('and fails leaves to the caller the error of the work', async () => {
    const own = new Error('mine');
    await one.redis.set(one.key('text'), 'text');
    const work = one.locks.withLock('both', ({ multi, commit }) => {
      multi.lpush(one.key('text'), 'x');
      void commit();
      throw own;
    });
    await expect(work).rejects.toBe(own);
    expect(await one.redis.exists(`${one.prefix}:{both}`)).toBe(0);
  });
});
