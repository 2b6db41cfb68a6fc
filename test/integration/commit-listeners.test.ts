import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockLostError, LockScopeError } from '../../lib/index.js';
import type { LockContext } from '../../lib/index.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

describe('a listener of afterCommit', () => {
  let one: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
  });
  afterAll(() => closeAll(one));

  /** Books, and says what its listener heard. */
  const book = (heard: unknown[], id: string, commitsItself = false) =>
    one.locks.withLock('account', async ({ multi, commit, afterCommit }) => {
      multi.set(one.key(`booking:${id}`), id).strlen(one.key(`booking:${id}`));
      afterCommit((replies) => heard.push([id, ...replies]));
      if (commitsItself) await commit();
    });

  it('of joined work is called once, by the commit() of that work, whatever is committed after it', async () => {
    const heard: unknown[] = [];
    await one.locks.withLock('account', async ({ multi }) => {
      await book(heard, 'a', true);
      await book(heard, 'bb', true);
      multi.incr(one.key('n'));
    });
    expect(heard).toEqual([
      ['a', 'OK', 1],
      ['bb', 'OK', 2],
    ]);
  });

  it('of joined work is called by the first commit of the outer work, with the replies to its own commands', async () => {
    const heard: unknown[] = [];
    await one.locks.withLock('account', async ({ multi, commit }) => {
      multi.set(one.key('before'), 1);
      await book(heard, 'a');
      await book(heard, 'bb');
      expect(heard).toEqual([]);
      await commit();
      expect(heard).toHaveLength(2);
      multi.incr(one.key('n'));
      await commit();
      multi.incr(one.key('n'));
    });
    expect(heard).toEqual([
      ['a', 'OK', 1],
      ['bb', 'OK', 2],
    ]);
  });

  it('of joined work is called by a commit() of a sibling that applies what it queued', async () => {
    const heard: unknown[] = [];
    await one.locks.withLock('account', async () => {
      await book(heard, 'a');
      await book(heard, 'bb', true);
      expect(heard).toHaveLength(2);
    });
    expect(heard).toEqual([
      ['a', 'OK', 1],
      ['bb', 'OK', 2],
    ]);
  });

  it('of outer work is not called by a commit() of joined work while the outer work has nothing in it', async () => {
    const heard: unknown[] = [];
    await one.locks.withLock('account', async ({ multi, afterCommit }) => {
      afterCommit((replies) => heard.push(['outer', ...replies]));
      await book(heard, 'a', true);
      multi.set(one.key('outer'), 1);
    });
    expect(heard).toEqual([
      ['a', 'OK', 1],
      ['outer', 'OK'],
    ]);
  });

  it('hears what joined work had handed in, as part of what its own work queued', async () => {
    const heard: unknown[] = [];
    await one.locks.withLock('account', async ({ multi, afterCommit }) => {
      afterCommit((replies) => heard.push(['outer', ...replies]));
      await book(heard, 'bb');
      multi.set(one.key('outer'), 1);
    });
    expect(heard).toEqual([
      ['outer', 'OK', 2, 'OK'],
      ['bb', 'OK', 2],
    ]);
  });

  it('with nothing queued is called at the end of the work, also when a commit() came before it', async () => {
    const heard: unknown[] = [];
    const listen = ({ afterCommit }: LockContext) => afterCommit((replies) => heard.push(replies));
    await one.locks.withLock('nothing', listen);
    await one.locks.withLock('nothing', { transaction: false }, listen);
    await one.locks.withLock('nothing', async (context) => {
      context.multi.incr(one.key('n'));
      await context.commit();
      listen(context);
    });
    expect(heard).toEqual([[], [], []]);
  });

  it('of joined work with nothing queued is called at the end of the outer work', async () => {
    const heard: unknown[] = [];
    for (const transaction of [true, false]) {
      await one.locks.withLock('nothing', { transaction }, async () => {
        await one.locks.withLock('nothing', ({ afterCommit }) => {
          afterCommit((replies) => heard.push([transaction, replies]));
        });
        await one.locks.withLock('nothing', async ({ multi, commit }) => {
          multi.incr(one.key('n'));
          await commit();
        });
        expect(heard.some((each) => (each as unknown[])[0] === transaction)).toBe(false);
      });
    }
    expect(heard).toEqual([
      [true, []],
      [false, []],
    ]);
  });

  it('with nothing queued is not called when the lock was lost before the end', async () => {
    const heard: unknown[] = [];
    const lose = async ({ afterCommit }: LockContext) => {
      afterCommit((replies) => heard.push(replies));
      await one.redis.del(`${one.prefix}:{lost}`);
    };
    await expect(one.locks.withLock('lost', lose)).rejects.toBeInstanceOf(LockLostError);
    await one.locks.withLock('lost', { onLost: 'report' }, lose);
    expect(heard).toEqual([]);
  });

  it('is not called when its work, or the outer work, has failed', async () => {
    const heard: unknown[] = [];
    const outer = one.locks.withLock('failed', async ({ afterCommit }) => {
      afterCommit(() => heard.push('outer'));
      const joined = one.locks.withLock('failed', (inner) => {
        inner.multi.incr(one.key('n'));
        inner.afterCommit(() => heard.push('failed'));
        throw new Error('inner');
      });
      await expect(joined).rejects.toThrow('inner');
      await one.locks.withLock('failed', (inner) => inner.afterCommit(() => heard.push('joined')));
      throw new Error('outer');
    });
    await expect(outer).rejects.toThrow('outer');
    expect(heard).toEqual([]);
  });

  it('is dropped with the commands of a commit() that was refused, and the outer work keeps its own', async () => {
    const heard: unknown[] = [];
    await one.redis.set(one.key('text'), 'text');
    await one.locks.withLock('dropped', async ({ multi, afterCommit }) => {
      multi.set(one.key('outer'), 1);
      afterCommit((replies) => heard.push(['outer', ...replies]));
      await one.locks.withLock('dropped', async (inner) => {
        (inner.multi as unknown as Record<string, (key: string) => void>)['lpush']?.(one.key('list'));
        inner.afterCommit(() => heard.push('refused'));
        await expect(inner.commit()).rejects.toMatchObject({ applied: 'none' });
      });
    });
    expect(heard).toEqual([['outer', 'OK']]);
  });

  it('is registered anew by each run of the work', async () => {
    const heard: number[] = [];
    let runs = 0;
    await one.locks.withLock('rerun', async ({ multi, afterCommit }) => {
      const run = (runs += 1);
      afterCommit(() => heard.push(run));
      multi.incr(one.key('n'));
      if (run === 1) await one.redis.del(`${one.prefix}:{rerun}`);
    });
    expect(heard).toEqual([2]);
  });

  it.each([
    ['at the end', false],
    ['by commit()', true],
  ])('told %s can read by LockContext, and is told why it cannot queue', async (_when, commitsItself) => {
    const seen: unknown[] = [];
    const refused: unknown[] = [];
    await one.locks.withLock('reading', () =>
      one.locks.withLock('other', async (context) => {
        context.multi.set(one.key('read'), 'committed');
        context.afterCommit(async () => {
          await Promise.resolve();
          const { redis, key, fencingToken } = one.context;
          seen.push(await redis.get(one.key('read')), key('x'), fencingToken === token);
          for (const use of [
            () => one.context.multi,
            () => one.context.afterCommit(() => undefined),
            () => one.context.commit(),
          ]) {
            await Promise.resolve()
              .then(use)
              .catch((error: unknown) => refused.push(error));
          }
        });
        const token = context.fencingToken;
        if (commitsItself) await context.commit();
      }),
    );
    expect(seen).toEqual(['committed', '{other}:x', true]);
    expect(refused).toHaveLength(3);
    for (const error of refused) {
      expect(error).toBeInstanceOf(LockScopeError);
      expect(error).toMatchObject({ message: expect.stringMatching(/commit is over/) });
    }
  });

  it('can read by the context that its work was given, until it has been told', async () => {
    const seen: unknown[] = [];
    let kept: LockContext | undefined;
    await one.locks.withLock('given', (context) => {
      kept = context;
      context.multi.set(one.key('given'), 'committed');
      context.afterCommit(async () => {
        seen.push(await context.redis.get(one.key('given')));
        expect(() => context.multi).toThrow(/commit is over/);
        seen.push('refused');
      });
    });
    expect(seen).toEqual(['committed', 'refused']);
    expect(() => kept?.redis).toThrow(/has ended/);
  });

  it('can take a lock again that was given up with the commit, and join one that was not', async () => {
    const key = one.key('inside-listener');
    const tokens: unknown[] = [];
    const again = () =>
      one.locks.withLock('inside', ({ lock, multi }) => {
        multi.rpush(key, 'listener');
        tokens.push(lock.token);
      });
    const work = async ({ multi, commit, lock, afterCommit }: LockContext) => {
      tokens.push(lock.token);
      multi.rpush(key, 'work');
      afterCommit(again as () => void);
      if (tokens.length > 2) await commit();
    };
    await one.locks.withLock('inside', work);
    expect(tokens[0]).not.toBe(tokens[1]);
    await one.locks.withLock('inside', work);
    expect(tokens[2]).toBe(tokens[3]);
    expect(await one.redis.lrange(key, 0, -1)).toEqual(['work', 'listener', 'work', 'listener']);
  });

  it('of joined work that commits at its own end does not wait for its own turn', async () => {
    const result = await one.locks.withLock('own-turn', { transaction: false }, () =>
      one.locks.withLock('own-turn', ({ multi, afterCommit }) => {
        multi.incr(one.key('n'));
        afterCommit((() => one.locks.withLock('own-turn', () => 'listener')) as () => void);
        return 'not stuck';
      }),
    );
    expect(result).toBe('not stuck');
  });
});
