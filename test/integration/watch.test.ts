import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  LockConfigurationError,
  LockConflictError,
  LockLostError,
  LockScopeError,
  LockUnavailableError,
} from '../../lib/index.js';
import type { LockContext } from '../../lib/index.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** Where several have to have arrived before any of them goes on. */
function barrier(size: number): () => Promise<void> {
  let arrived = 0;
  return async () => {
    arrived += 1;
    await eventually(() => arrived >= size);
  };
}

describe('watched keys', () => {
  let one: LockApplication;
  beforeAll(async () => {
    one = await startLocks();
  });
  afterAll(() => closeAll(one));

  const get = (name: string) => one.redis.get(one.key(name));
  const set = (name: string, value: string | number) => one.redis.set(one.key(name), value);
  const isFree = async (resource: string) => (await one.redis.exists(`${one.prefix}:{${resource}}`)) === 0;
  const failure = (promise: Promise<unknown>) =>
    promise.then(
      () => undefined,
      (error: unknown) => error as Error,
    );
  /** Adds one to a number by reading it, which is only right if nobody else writes in between. */
  const addOne = async ({ watch, redis, multi }: LockContext, name: string) => {
    await watch(one.key(name));
    const before = Number(await redis.get(one.key(name)));
    multi.set(one.key(name), before + 1);
    return before;
  };

  it('that nobody changes let the commit pass, and it gives the lock up', async () => {
    await set('calm', 1);
    expect(await one.locks.withLock('calm', (context) => addOne(context, 'calm'))).toBe(1);
    expect([await get('calm'), await isFree('calm')]).toEqual(['2', true]);
  });

  it('case 14: a changed key has the work run again under the same lock, and the second run sees the change', async () => {
    await set('changed', 1);
    const tokens: string[] = [];
    const result = await one.locks.withLock('changed', async (context) => {
      tokens.push(context.lock.token);
      const before = await addOne(context, 'changed');
      if (tokens.length === 1) await set('changed', 100);
      return before;
    });
    expect([result, await get('changed')]).toEqual([100, '101']);
    expect([tokens.length, new Set(tokens).size]).toEqual([2, 1]);
    expect(await isFree('changed')).toBe(true);
  });

  it('case 14: a key that keeps changing is a LockConflictError when the retries are spent, with nothing applied', async () => {
    let runs = 0;
    const error = await failure(
      one.locks.withLock('hopeless', { retries: 2 }, async (context) => {
        await addOne(context, 'hopeless');
        await set('hopeless', `outside ${(runs += 1)}`);
        context.multi.set(one.key('hopeless:also'), 1);
      }),
    );
    expect(error).toBeInstanceOf(LockConflictError);
    expect(error).toMatchObject({ code: 'LOCK_CONFLICT', status: 409, resources: ['hopeless'] });
    expect([runs, await get('hopeless'), await get('hopeless:also')]).toEqual([3, 'outside 3', null]);
    expect(await isFree('hopeless')).toBe(true);
  });

  it('case 13: are watched by 50 transactions at once, against an outside writer, and no addition is lost', async () => {
    await set('contended', 0);
    const outside = startLocks({ keyPrefix: one.prefix });
    let [outsideAdditions, runs] = [0, 0];
    let done = false;
    const writer = (async () => {
      // Not for ever: where a transaction takes longer than the pause, none would ever pass.
      while (!done && outsideAdditions < 200) {
        await one.redis.incr(one.key('contended'));
        outsideAdditions += 1;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    })();
    // Locks of their own, data in common: nothing but WATCH keeps them apart.
    const applications = [one, await outside];
    const outcomes = await Promise.allSettled(
      Array.from({ length: 50 }, (_, i) =>
        applications[i % 2]?.locks.withLock(`adder:${i}`, { retries: 1_000 }, (context) => {
          runs += 1;
          return addOne(context, 'contended');
        }),
      ),
    );
    done = true;
    await writer;
    expect(outcomes.filter(({ status }) => status === 'rejected')).toEqual([]);
    expect(Number(await get('contended'))).toBe(50 + outsideAdditions);
    expect(runs).toBeGreaterThan(50); // or they never met
    await (await outside).app.close();
    (await outside).redis.disconnect();
  });

  it('case 13: are not forgotten because another transaction of the same service ends', async () => {
    await set('mine', 1);
    let runs = 0;
    let begin = () => undefined as void;
    const begun = new Promise<void>((resolve) => (begin = resolve));
    // Not nested: it runs where it was called for.
    const other = begun.then(() =>
      one.locks.withLock('another', ({ multi }) => multi.incr(one.key('another'))),
    );
    await one.locks.withLock('mine', async (context) => {
      await addOne(context, 'mine');
      begin();
      await other;
      if ((runs += 1) === 1) await set('mine', 7);
    });
    expect([runs, await get('mine'), await get('another')]).toEqual([2, '8', '1']);
  });

  it('do not have work run again in which a nested lock has committed, which would do that twice', async () => {
    let runs = 0;
    const error = await failure(
      one.locks.withLock('order', async (context) => {
        runs += 1;
        await addOne(context, 'order');
        await one.locks.withLock('payment', ({ multi }) => multi.incr(one.key('payment')));
        await set('order', 5);
      }),
    );
    expect(error).toBeInstanceOf(LockConflictError);
    expect([runs, await get('order'), await get('payment')]).toEqual([1, '5', '1']);
  });

  it('are not given up by a commit() of work nested in the one that watches', async () => {
    await set('kept', 1);
    const refusals: unknown[] = [];
    let runs = 0;
    await one.locks.withLock('kept', async (context) => {
      await addOne(context, 'kept');
      await one.locks.withLock('kept', async ({ multi, commit }) => {
        multi.incr(one.key('kept:nested'));
        await commit().catch((error: unknown) => refusals.push(error));
      });
      if ((runs += 1) === 1) await set('kept', 100);
    });
    expect(refusals).toEqual([expect.any(LockScopeError), expect.any(LockScopeError)]);
    expect([runs, await get('kept'), await get('kept:nested')]).toEqual([2, '101', '1']);
  });

  it('can be several, named one after the other', async () => {
    let runs = 0;
    await one.locks.withLock('several', async ({ watch, multi }) => {
      await watch(one.key('a'), one.key('b'));
      await watch(one.key('c'));
      multi.incr(one.key('several'));
      if ((runs += 1) < 4) await set(['a', 'b', 'c'][runs - 1] ?? '', runs);
    });
    expect([runs, await get('several')]).toEqual([4, '1']);
  });

  it('hold for the next commit(), which tells of the conflict, and the work may run again', async () => {
    const refused: unknown[] = [];
    let runs = 0;
    await one.locks.withLock('between', async (context) => {
      runs += 1;
      await addOne(context, 'between');
      if (runs === 1) await set('between', 10);
      await context.commit().catch((error: unknown) => {
        refused.push(error);
        throw error;
      });
    });
    expect(refused).toEqual([expect.any(LockConflictError)]);
    expect([runs, await get('between')]).toEqual([2, '11']);
  });

  it('are over after commit(), and what changes then is no conflict', async () => {
    let runs = 0;
    await one.locks.withLock('over', async (context) => {
      runs += 1;
      await addOne(context, 'over');
      expect(await context.commit()).toEqual(['OK']);
      await set('over', 10);
      context.multi.incr(one.key('over'));
    });
    expect([runs, await get('over')]).toEqual([1, '11']);
  });

  it('are not run again for once a part of the work was committed', async () => {
    let runs = 0;
    const error = await failure(
      one.locks.withLock('partly', async (context) => {
        runs += 1;
        context.multi.incr(one.key('partly'));
        await context.commit();
        await addOne(context, 'partly');
        await set('partly', 50);
      }),
    );
    expect(error).toBeInstanceOf(LockConflictError);
    expect([runs, await get('partly')]).toEqual([1, '50']);
  });

  it('that changed while the lock was lost as well are a lost lock', async () => {
    const error = await failure(
      one.locks.withLock('both', { retries: 0 }, async (context) => {
        await addOne(context, 'both');
        await set('both', 5);
        await one.redis.del(`${one.prefix}:{both}`);
      }),
    );
    expect(error).toBeInstanceOf(LockLostError);
    expect(await get('both')).toBe('5');
  });

  it('refuse a commit under the same lock also when its commands reply with Buffers', async () => {
    const tokens = new Set<string>();
    let runs = 0;
    await one.locks.withLock('buffers', async ({ watch, multi, lock }) => {
      tokens.add(lock.token);
      await watch(one.key('buffers'));
      multi.getBuffer(one.key('buffers')).setBuffer(one.key('buffers:copy'), 'x', 'GET');
      if ((runs += 1) === 1) await set('buffers', 1);
    });
    expect([runs, tokens.size]).toEqual([2, 1]);
  });

  it('are those of the whole scope, also when nested work named them', async () => {
    let runs = 0;
    await one.locks.withLock('outer', async ({ multi }) => {
      runs += 1;
      await one.locks.withLock('outer', (inner) => addOne(inner, 'nested'));
      if (runs === 1) await set('nested', 30);
      multi.incr(one.key('nested:runs'));
    });
    expect([runs, await get('nested'), await get('nested:runs')]).toEqual([2, '31', '1']);
  });

  it('of work nested in a scope without a transaction have that work alone run again', async () => {
    let [outer, inner] = [0, 0];
    await one.locks.withLock('plain', { transaction: false }, async () => {
      outer += 1;
      await one.locks.withLock('plain', async (context) => {
        await addOne(context, 'plain');
        if ((inner += 1) === 1) await set('plain', 40);
      });
      expect(await get('plain')).toBe('41');
    });
    expect([outer, inner]).toEqual([1, 2]);
  });

  it('do not matter to work that fails, or queues nothing', async () => {
    const error = await failure(
      one.locks.withLock('failing', async (context) => {
        await addOne(context, 'failing');
        await set('failing', 60);
        throw new Error('mine');
      }),
    );
    expect(error?.message).toBe('mine');
    const result = await one.locks.withLock('failing', async ({ watch }) => {
      await watch(one.key('failing'));
      await set('failing', 61);
      return 'read only';
    });
    expect([result, await get('failing'), await isFree('failing')]).toEqual(['read only', '61', true]);
  });

  it('are no conflict because the lock is renewed meanwhile', async () => {
    let commits = 0;
    await one.locks.withLock('renewed', { ttl: 500, retries: 0 }, async (context) => {
      const since = performance.now();
      const commitOn = async () => {
        while (performance.now() - since < 1_200) {
          await context.watch(one.key('renewed'));
          context.multi.incr(one.key('renewed:commits'));
          await context.commit();
          commits += 1;
        }
      };
      await Promise.all([commitOn(), commitOn()]);
    });
    expect(await get('renewed:commits')).toBe(String(commits));
  });

  it('that nobody waited for are watched all the same', async () => {
    let runs = 0;
    await one.locks.withLock('unawaited', ({ watch, multi }) => {
      runs += 1;
      void watch(one.key('unawaited'));
      multi.incr(one.key('unawaited'));
    });
    expect([runs, await get('unawaited')]).toEqual([1, '1']);
  });

  it('need a name, a transaction and a scope', async () => {
    const refused = async (use: (context: LockContext) => Promise<unknown>, options = {}) =>
      failure(one.locks.withLock('misused', options, use));
    const configuration = expect.any(LockConfigurationError);
    expect(await refused(({ watch }) => watch())).toEqual(configuration);
    expect(await refused(({ watch }) => watch(''))).toEqual(configuration);
    expect(await refused(({ watch }) => watch(1 as unknown as string))).toEqual(configuration);
    expect(await refused(({ watch }) => watch('a'), { transaction: false })).toBeInstanceOf(LockScopeError);
    let kept: LockContext | undefined;
    await one.locks.withLock('misused', (context) => void (kept = context));
    expect(await failure(kept?.watch('a') ?? Promise.resolve())).toBeInstanceOf(LockScopeError);
    expect(await failure(one.context.watch('a'))).toBeInstanceOf(LockScopeError);
  });

  it('are watched by LockContext, wherever it was injected', async () => {
    let runs = 0;
    await one.locks.withLock('injected', async () => {
      await one.context.watch(one.key('injected'));
      if ((runs += 1) === 1) await set('injected', 70);
      one.context.multi.incr(one.key('injected'));
    });
    expect([runs, await get('injected')]).toEqual([2, '71']);
  });
});

describe('the connections that watch', () => {
  it('are 7 for outer scopes and one more for those nested in them, and 12 of the service in all', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url });
    try {
      const together = barrier(7);
      let most = 0;
      const work = async (i: number) =>
        one.locks.withLock(`outer:${i}`, async ({ watch, multi }) => {
          await watch(one.key(`outer:${i}`));
          if (i < 7) await together();
          await one.locks.withLock(`inner:${i}`, { wait: 1_000 }, async (inner) => {
            await inner.watch(one.key(`inner:${i}`));
            most = Math.max(most, proxy.clients());
            inner.multi.incr(one.key('inner'));
          });
          multi.incr(one.key('outer'));
        });
      const holder = await one.locks.acquire('busy');
      const waiter = one.locks.acquire('busy', { wait: 5_000 });
      await Promise.all(Array.from({ length: 20 }, (_, i) => work(i)));
      await holder.release();
      await (await waiter).release();
      await one.locks.withLock('user', ({ redis }) => redis.get(one.key('outer')));
      expect([await one.redis.get(one.key('outer')), await one.redis.get(one.key('inner'))]).toEqual([
        '20',
        '20',
      ]);
      expect([most, proxy.clients()]).toEqual([11, 12]);
    } finally {
      await one.close();
      await proxy.close();
    }
  });

  it('are waited for no longer than the lease lasts', async () => {
    const one = await startLocks({ ttl: 400 });
    try {
      const together = barrier(8);
      const holders = Array.from({ length: 7 }, (_, i) =>
        one.locks.withLock(`holder:${i}`, async ({ watch, multi }) => {
          await watch(one.key('held'));
          multi.incr(one.key(`holder:${i}`));
          await together();
        }),
      );
      const late = one.locks.withLock('late', ({ watch }) => watch(one.key('held')));
      await expect(late).rejects.toBeInstanceOf(LockUnavailableError);
      await together();
      await Promise.all(holders);
      // They were given back in a state in which the next one can use them.
      await one.locks.withLock('late', async ({ watch, multi }) => {
        await watch(one.key('held'));
        multi.incr(one.key('late'));
      });
      expect(await one.redis.get(one.key('late'))).toBe('1');
    } finally {
      await one.close();
    }
  });

  it('are not waited for by a scope whose outer scopes have two of them', async () => {
    const one = await startLocks();
    try {
      const together = barrier(7);
      const nest = async (name: string, inside: () => Promise<void>) =>
        one.locks.withLock(name, async ({ watch, multi }) => {
          await watch(one.key(name));
          multi.incr(one.key('nested'));
          await inside();
        });
      const others = Array.from({ length: 6 }, (_, i) => nest(`other:${i}`, together));
      const deep = nest('1', () => nest('2', () => nest('3', async () => undefined)));
      await expect(deep).rejects.toBeInstanceOf(LockUnavailableError);
      await together();
      await Promise.all(others);
      await nest('1', () => nest('2', () => nest('3', async () => undefined)));
      expect(await one.redis.get(one.key('nested'))).toBe('9');
    } finally {
      await one.close();
    }
  });

  it('have the work run again under a new lock when the lock was lost after the guard had passed', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url });
    try {
      const tokens: string[] = [];
      const lose = async () => {
        await eventually(() => proxy.heldRequests() > 0);
        await one.redis.del(`${one.prefix}:{lost}`);
        proxy.passRequests();
      };
      let lost: Promise<void> | undefined;
      await one.locks.withLock('lost', async ({ watch, multi, lock }) => {
        tokens.push(lock.token);
        await watch(one.key('lost'));
        multi.incr(one.key('lost'));
        if (tokens.length > 1) return;
        proxy.holdRequestsWith('multi');
        lost = lose();
      });
      await lost;
      expect([tokens.length, new Set(tokens).size, await one.redis.get(one.key('lost'))]).toEqual([
        2,
        2,
        '1',
      ]);
      const error = one.locks.withLock('lost', { retries: 0 }, async ({ watch, multi }) => {
        await watch(one.key('lost'));
        multi.incr(one.key('lost'));
        proxy.holdRequestsWith('multi');
        lost = lose();
      });
      await expect(error).rejects.toBeInstanceOf(LockLostError);
    } finally {
      await one.close();
      await proxy.close();
    }
  });

  it('are made anew when they are lost, which counts as a conflict', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const one = await startLocks({ url: sharedRedisUrl(), connection: proxy.url });
    try {
      let runs = 0;
      await one.locks.withLock('cut', async ({ watch, multi }) => {
        await watch(one.key('cut'));
        multi.incr(one.key('cut'));
        if ((runs += 1) <= 2) {
          const [before] = [proxy.clients()];
          proxy.cut(one.key('cut'));
          await eventually(() => proxy.clients() < before);
        }
      });
      expect([runs, await one.redis.get(one.key('cut'))]).toEqual([3, '1']);
    } finally {
      await one.close();
      await proxy.close();
    }
  });

  it('end with the application, and so do those who wait for one', async () => {
    const one = await startLocks({ shutdownTimeout: 50 });
    const together = barrier(1);
    const stuck = Array.from({ length: 9 }, (_, i) =>
      one.locks.withLock(`stuck:${i}`, async ({ watch, multi, signal }) => {
        multi.incr(one.key('stuck'));
        await watch(one.key('stuck'));
        await together();
        await eventually(() => signal.aborted);
      }),
    );
    const outcomes = Promise.allSettled(stuck);
    await eventually(async () => (await one.redis.keys(`${one.prefix}:{stuck:*}`)).length === 9);
    await one.app.close();
    for (const outcome of await outcomes) expect(outcome.status).toBe('rejected');
    expect(await one.redis.get(one.key('stuck'))).toBeNull();
    await one.close();
  });
});
