import { Injectable } from '@nestjs/common';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  LockContext,
  LockLostError,
  LockScopeError,
  LockTransactionError,
  WithLock,
} from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

@Injectable()
class Base {
  constructor(readonly context: LockContext) {}

  @WithLock('account:<id>')
  async book(id: string, key: string): Promise<string> {
    this.context.multi.incr(key);
    return `${id}:${this.context.lock.token}`;
  }
}

@Injectable()
class Accounts extends Base {
  @WithLock('account:<id>')
  override async book(id: string, key: string): Promise<string> {
    this.context.multi.incr(key);
    return super.book(id, key);
  }

  @WithLock('account:<id>')
  async twice(id: string, key: string): Promise<string[]> {
    return [await this.book(id, key), await this.book(id, key)];
  }
}

describe('inside of a scope', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks({}, { providers: [Accounts] });
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);
  const data = (name: string) => one.redis.get(one.key(name));

  it('case 20: a nested call on the same lock joins, also by super, and commits once at the outermost end', async () => {
    const accounts = one.app.get(Accounts);
    const tokens = await accounts.twice('1', one.key('accounts'));
    expect(new Set(tokens).size).toBe(1);
    expect(await data('accounts')).toBe('4');
    expect(await owner('account:1')).toBeNull();
  });

  it('nothing is applied before the outermost end', async () => {
    await one.locks.withLock('outer', async ({ lock, multi }) => {
      multi.rpush(one.key('order'), 'outer');
      await one.locks.withLock('outer', (inner) => {
        expect(inner.lock).toBe(lock);
        inner.multi.rpush(one.key('order'), 'inner');
      });
      multi.rpush(one.key('order'), 'outer again');
      expect(await one.redis.exists(one.key('order'))).toBe(0);
      expect(await owner('outer')).toBe(lock.token);
    });
    expect(await one.redis.lrange(one.key('order'), 0, -1)).toEqual(['outer', 'inner', 'outer again']);
  });

  it('what a joined call queued is dropped when it fails, and the outer work may go on', async () => {
    const own = new Error('mine');
    await one.locks.withLock('drop', async ({ multi }) => {
      multi.incr(one.key('kept'));
      const failed = one.locks.withLock('drop', (inner) => {
        inner.multi.incr(one.key('dropped'));
        throw own;
      });
      await expect(failed).rejects.toBe(own);
    });
    expect([await data('kept'), await data('dropped')]).toEqual(['1', null]);
  });

  it('a joined call with a refused command fails by itself', async () => {
    await one.locks.withLock('doomed', async ({ multi }) => {
      multi.incr(one.key('doomed'));
      const failed = one.locks.withLock('doomed', (inner) => {
        expect(() => (inner.multi as unknown as { exec(): void }).exec()).toThrow(LockTransactionError);
      });
      await expect(failed).rejects.toBeInstanceOf(LockTransactionError);
    });
    expect(await data('doomed')).toBe('1');
  });

  it('siblings started together take turns', async () => {
    let inside = 0;
    let most = 0;
    await one.locks.withLock('siblings', async () => {
      await Promise.all(
        [1, 2, 3, 4].map((i) =>
          one.locks.withLock('siblings', async ({ multi, redis }) => {
            most = Math.max(most, (inside += 1));
            await redis.ping();
            multi.rpush(one.key('siblings'), i);
            inside -= 1;
          }),
        ),
      );
    });
    expect(most).toBe(1);
    expect(await one.redis.lrange(one.key('siblings'), 0, -1)).toEqual(['1', '2', '3', '4']);
  });

  it('a call that joined from within a sibling does not wait for itself', async () => {
    const result = await one.locks.withLock('deep', () =>
      one.locks.withLock('deep', () => one.locks.withLock('deep', () => 'three deep')),
    );
    expect(result).toBe('three deep');
  });

  it('the scope ends after its children, also when the work forgot to wait for them', async () => {
    let proceed = () => undefined as void;
    const gate = new Promise<void>((resolve) => (proceed = resolve));
    let child: Promise<void> | undefined;
    const outer = one.locks.withLock('children', ({ multi }) => {
      multi.incr(one.key('children'));
      child = one.locks.withLock('children', async (inner) => {
        await gate;
        inner.multi.incr(one.key('children'));
      });
    });
    await one.redis.ping();
    expect(await owner('children')).not.toBeNull();
    proceed();
    await outer;
    await child;
    expect(await data('children')).toBe('2');
  });

  it('a lock on another resource is its own, and commits at its own end', async () => {
    await one.locks.withLock('a', async ({ multi, lock }) => {
      multi.incr(one.key('a'));
      await one.locks.withLock('b', (inner) => {
        expect(inner.lock).not.toBe(lock);
        expect(one.context.lock).toBe(inner.lock);
        inner.multi.incr(one.key('b'));
      });
      expect([await data('a'), await data('b'), await owner('b')]).toEqual([null, '1', null]);
      expect(one.context.lock).toBe(lock);
    });
    expect(await data('a')).toBe('1');
  });

  it('of several resources only those that are missing are taken', async () => {
    await one.locks.withLock(['p:a', 'p:b'], async (outer) => {
      await one.locks.withLock(['p:b', 'p:c'], async (inner) => {
        expect(inner.lock.resources).toEqual(['p:c']);
        expect(await owner('p:b')).toBe(outer.lock.token);
        expect(await owner('p:c')).toBe(inner.lock.token);
        await one.locks.withLock(['p:a', 'p:b', 'p:c'], (innermost) => {
          innermost.multi.incr(one.key('p'));
        });
        inner.multi.incr(one.key('p'));
      });
      expect(await data('p')).toBe('2');
      expect(await owner('p:c')).toBeNull();
    });
  });

  it('a commit that relied on the lock of an outer scope is refused when that one is lost', async () => {
    const error = await one.locks
      .withLock(['q:a'], { retries: 0 }, async () => {
        await one.locks.withLock(['q:a', 'q:b'], async ({ multi }) => {
          multi.incr(one.key('q'));
          await other.redis.set(`${one.prefix}:{q:a}`, 'somebody else', 'PX', 1_000);
        });
      })
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(LockLostError);
    expect(await data('q')).toBeNull();
    await one.redis.del(`${one.prefix}:{q:a}`);
    await eventually(async () => (await owner('q:b')) === null);
  });

  it.each([
    ['joined through two scopes', ['g:a'], ['g:b'], ['g:a', 'g:b']],
    ['borrowed by a borrower', ['g:a'], ['g:a', 'g:b'], ['g:a', 'g:c']],
  ])('a commit is refused when a lock is lost that it relied on, %s', async (_how, first, second, third) => {
    const key = one.key('relied');
    const error = await one.locks
      .withLock(first, { retries: 0, transaction: false, onLost: 'report' }, () =>
        one.locks.withLock(second, { retries: 0 }, () =>
          one.locks.withLock(third, { retries: 0 }, async ({ multi }) => {
            multi.incr(key);
            await other.redis.set(`${one.prefix}:{g:a}`, 'somebody else', 'PX', 1_000);
          }),
        ),
      )
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(LockLostError);
    expect(await one.redis.get(key)).toBeNull();
    await one.redis.del(`${one.prefix}:{g:a}`);
    await eventually(async () => (await owner('g:b')) === null && (await owner('g:c')) === null);
  });

  it('a call has the key and the lock of what it asked for itself, whoever calls it', async () => {
    const ask = () =>
      one.locks.withLock('stock:7', ({ key, lock }) => [key('left'), lock.fencingTokens.has('stock:7')]);
    const alone = await ask();
    expect(alone).toEqual(['{stock:7}:left', true]);
    expect(await one.locks.withLock(['order:1', 'stock:7'], ask)).toEqual(alone);
    expect(await one.locks.withLock('stock:7', () => one.locks.withLock(['a:1', 'stock:7'], ask))).toEqual(
      alone,
    );
    await one.locks.withLock('stock:7', () =>
      one.locks.withLock(['a:1', 'stock:7'], async () => {
        expect((await one.locks.acquire('stock:7')).resources).toEqual(['stock:7']);
      }),
    );
  });

  it('commit() in a joined call that fails leaves to the outer work what that had queued', async () => {
    await one.locks.withLock('kept', async ({ multi }) => {
      multi.rpush(one.key('kept-list'), 'before');
      const inner = one.locks.withLock('kept', async (joined) => {
        (joined.multi as unknown as Record<string, (key: string) => void>)['lpush']?.(one.key('kept-list'));
        await joined.commit();
      });
      await expect(inner).rejects.toBeInstanceOf(LockTransactionError);
      multi.rpush(one.key('kept-list'), 'after');
    });
    expect(await one.redis.lrange(one.key('kept-list'), 0, -1)).toEqual(['before', 'after']);
  });

  it('siblings that want the locks of their scopes in different orders do not wait for each other', async () => {
    const done: string[] = [];
    await one.locks.withLock('t:x', () =>
      one.locks.withLock('t:y', async () => {
        await Promise.all([
          one.locks.withLock('t:y', () => one.locks.withLock('t:x', () => done.push('y, x'))),
          one.locks.withLock(['t:x', 't:y'], () => done.push('both')),
          one.locks.withLock('t:x', () => one.locks.withLock('t:y', () => done.push('x, y'))),
        ]);
      }),
    );
    expect(done).toHaveLength(3);
  });

  it('a sibling gives up its turn when it is aborted, when its time is over, and when the lock is lost', async () => {
    let end = () => undefined as void;
    const gate = new Promise<void>((resolve) => (end = resolve));
    await one.locks
      .withLock('turns', { retries: 0 }, async () => {
        const first = one.locks.withLock('turns', () => gate);
        const aborted = one.locks.withLock('turns', { signal: AbortSignal.timeout(20) }, () => 1);
        await expect(aborted).rejects.toMatchObject({ reason: 'aborted' });
        await expect(one.locks.withLock('turns', { wait: 20 }, () => 1)).rejects.toMatchObject({
          reason: 'timeout',
        });
        const lost = one.locks.withLock('turns', () => 1);
        await other.redis.del(`${one.prefix}:{turns}`);
        await expect(lost).rejects.toBeInstanceOf(LockLostError);
        end();
        await first;
      })
      .catch((error: unknown) => expect(error).toBeInstanceOf(LockLostError));
  });

  it('listeners of a loss run in the scope that listens', async () => {
    let seen: unknown;
    await one.locks
      .withLock('listened', { ttl: 300 }, async ({ signal, lock }) => {
        signal.addEventListener('abort', () => (seen = one.context.lock === lock));
        await other.redis.del(`${one.prefix}:{listened}`);
        await eventually(() => signal.aborted);
      })
      .catch((error: unknown) => expect(error).toBeInstanceOf(LockLostError));
    expect(seen).toBe(true);
  });

  it('acquire joins, and its release ends the join only', async () => {
    await one.locks.withLock('acquired', async ({ lock }) => {
      const joined = await one.locks.acquire('acquired');
      expect(joined.token).toBe(lock.token);
      await joined.release();
      expect([joined.held, joined.remaining]).toEqual([false, 0]);
      await expect(joined.extend()).rejects.toBeInstanceOf(LockLostError);
      expect(lock.held).toBe(true);
      expect(await owner('acquired')).toBe(lock.token);
    });
    expect(await owner('acquired')).toBeNull();
  });

  it('another service does not join', async () => {
    await one.locks.withLock('apart', async () => {
      await expect(other.locks.withLock('apart', () => 1)).rejects.toMatchObject({ reason: 'busy' });
    });
  });

  it('after its end the context refuses, and a lock taken by code that still runs is a fresh one', async () => {
    let proceed = () => undefined as void;
    const gate = new Promise<void>((resolve) => (proceed = resolve));
    let late: Promise<string> | undefined;
    let token = '';
    await one.locks.withLock('ended', ({ lock }) => {
      token = lock.token;
      late = gate.then(async () => {
        expect(() => one.context.lock).toThrow(LockScopeError);
        return one.locks.withLock('ended', (fresh) => fresh.lock.token);
      });
    });
    proceed();
    const fresh = await late;
    expect(fresh).toContain(':');
    expect(fresh).not.toBe(token);
  });

  it('commit() in a joined call applies what came before it, too', async () => {
    const heard: unknown[][] = [];
    await one.locks.withLock('early', async (outer) => {
      outer.afterCommit((replies) => heard.push(replies));
      outer.multi.incr(one.key('early'));
      await one.locks.withLock('early', async (inner) => {
        inner.multi.incr(one.key('early')).incr(one.key('early'));
        expect(await inner.commit()).toEqual([2, 3]);
      });
      outer.multi.incr(one.key('early'));
    });
    expect(heard).toEqual([[1]]);
    expect(await data('early')).toBe('4');
  });

  it('work in an outer scope without a transaction may have one in a joined call', async () => {
    await one.locks.withLock('mixed', { transaction: false }, async ({ lock }) => {
      await one.locks.withLock('mixed', ({ multi }) => multi.incr(one.key('mixed')));
      expect(await data('mixed')).toBe('1');
      expect(lock.held).toBe(true);
    });
  });

  it('app.close() lets running work take the locks it needs to end, and nobody else', async () => {
    const closing = await startLocks({ keyPrefix: one.prefix });
    let proceed = () => undefined as void;
    const gate = new Promise<void>((resolve) => (proceed = resolve));
    let hasBegun = false;
    const work = closing.locks.withLock('last', async ({ multi }) => {
      hasBegun = true;
      await gate;
      await closing.locks.withLock('nested', (inner) => inner.multi.incr(one.key('last')));
      await closing.locks.withLock('last', (inner) => inner.multi.incr(one.key('last')));
      multi.incr(one.key('last'));
    });
    await eventually(() => hasBegun); // Redis knows of the lock before this
    const closed = closing.app.close();
    await eventually(() =>
      closing.locks.acquire('any').then(
        (lock) => lock.release().then(() => false),
        (error: { reason: string }) => error.reason === 'shutdown',
      ),
    );
    proceed();
    await work;
    await closed;
    expect(await data('last')).toBe('3');
    await closing.app.close(); // again: nothing happens
    closing.redis.disconnect();
  });

  it('app.close() does not wait for ever', async () => {
    const closing = await startLocks({ keyPrefix: one.prefix, shutdownTimeout: 50 });
    let end = () => undefined as void;
    let signal: AbortSignal | undefined;
    const work = closing.locks.withLock('stuck', (context) => {
      signal = context.signal;
      return new Promise<void>((resolve) => (end = resolve));
    });
    await eventually(() => signal !== undefined); // Redis knows of the lock before this
    const started = performance.now();
    await closing.app.close();
    expect(performance.now() - started).toBeLessThan(1_000);
    expect(await owner('stuck')).toBeNull();
    end();
    await expect(work).rejects.toBeInstanceOf(LockLostError); // its lock was taken away before it ended
    expect(signal?.aborted).toBe(true);
    closing.redis.disconnect();
  });

  it('work that goes on after app.close() keeps its scope, and what comes after its end is in none', async () => {
    const closing = await startLocks({ shutdownTimeout: 10 });
    const { app, locks, context } = closing;
    let finish = () => undefined as void;
    const finished = new Promise<void>((resolve) => (finish = resolve));
    let begun = false;
    let seen: unknown;
    let later: Promise<unknown> | undefined;
    const work = locks.withLock('late', async ({ lock }) => {
      begun = true;
      await finished;
      seen = [context.lock === lock, lock.held];
      later = new Promise<void>((resolve) => setTimeout(resolve, 10)).then(() => context.lock);
      later.catch(() => undefined); // looked at below
    });
    work.catch(() => undefined);
    await eventually(() => begun);
    await app.close();
    closing.redis.disconnect();
    finish();
    await expect(work).rejects.toBeInstanceOf(LockLostError);
    expect(seen).toEqual([true, false]);
    // From Node 24 on, nothing has to be taken from what still runs for the storage to cost nothing.
    const isTaken = Number(process.versions.node.split('.')[0]) < 24;
    await expect(later).rejects.toThrow(isTaken ? /outside of/ : /outside of|has ended/);
  });
});
