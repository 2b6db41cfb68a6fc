import { inspect } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Command } from 'ioredis';
import type { ChainableCommander } from 'ioredis';
import {
  LockLostError,
  LockScopeError,
  LockTransactionError,
  LockUnavailableError,
} from '../../lib/index.js';
import type { LockContext, LockTransaction, WithLockOptions } from '../../lib/index.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { startDelayProxy } from '../support/delay-proxy.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const rejection = (promise: Promise<unknown>) =>
  promise.then(
    () => {
      throw new Error('It should have been rejected');
    },
    (error: unknown) => error,
  );

describe('work under a lock', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const ownerKey = (resource: string) => `${one.prefix}:{${resource}}`;
  const data = (name: string) => one.redis.get(one.key(name));

  it('has what it queued applied once, and the lock given up', async () => {
    const result = await one.locks.withLock('happy', async ({ multi, lock }) => {
      multi.incr(one.key('happy')).set(one.key('happy:by'), lock.token);
      expect(await data('happy')).toBeNull();
      expect(await one.redis.get(ownerKey('happy'))).toBe(lock.token);
      return 42;
    });
    expect(result).toBe(42);
    expect(await data('happy')).toBe('1');
    expect(await one.redis.exists(ownerKey('happy'))).toBe(0);
    expect(await other.locks.withLock('happy', () => 'next')).toBe('next');
  });

  it('is renewed although its commits follow each other without a pause', async () => {
    const committed = await one.locks.withLock(
      'incessant',
      { ttl: 200, retries: 0 },
      async ({ multi, commit }) => {
        const since = performance.now();
        let commits = 0;
        for (; performance.now() - since < 500; commits += 1) {
          multi.incr(one.key('incessant'));
          await commit();
        }
        return commits;
      },
    );
    expect(await data('incessant')).toBe(String(committed));
  });

  it('is renewed although commits that overlap leave no time between them', async () => {
    const committed = await one.locks.withLock(
      'overlapping',
      { ttl: 600, retries: 0 },
      async ({ multi, commit }) => {
        const since = performance.now();
        let commits = 0;
        const commitOn = async () => {
          while (performance.now() - since < 1_500) {
            multi.incr(one.key('overlapping'));
            await commit();
            commits += 1;
          }
        };
        await Promise.all([commitOn(), commitOn(), commitOn()]);
        return commits;
      },
    );
    expect(await data('overlapping')).toBe(String(committed));
  });

  it('is renewed while commits of nested locks rely on it and overlap with its own', async () => {
    const since = performance.now();
    let commits = 0;
    /** Commits under a lock of that depth and, meanwhile, under those nested in it, which rely on all around them. */
    const commitOn = async (depth: number, { multi, commit }: LockContext): Promise<unknown> => {
      const own = async () => {
        while (performance.now() - since < 1_500) {
          multi.incr(one.key('relied-on'));
          await commit();
          commits += 1;
        }
      };
      if (depth === 5) return own();
      const resources = ['relied-on', `relied-on:${depth + 1}`];
      const inner = (context: LockContext) => commitOn(depth + 1, context);
      return Promise.all([own(), one.locks.withLock(resources, { ttl: 5_000, retries: 0 }, inner)]);
    };
    await one.locks.withLock('relied-on', { ttl: 600, retries: 0 }, (context) => commitOn(0, context));
    expect(await data('relied-on')).toBe(String(commits));
  });

  it('is renewed while more of its commits wait for each other than a lease has time for', async () => {
    const proxy = await startDelayProxy(sharedRedisUrl(), 5);
    const slow = await startLocks({ connection: proxy.url, keyPrefix: one.prefix });
    try {
      await slow.locks.withLock('in-line', { ttl: 600, retries: 0 }, async ({ multi, commit }) => {
        const once = async () => {
          multi.incr(one.key('in-line'));
          await commit();
        };
        await Promise.all(Array.from({ length: 100 }, once));
      });
      expect(await data('in-line')).toBe('100');
    } finally {
      await slow.app.close();
      slow.redis.disconnect();
      await proxy.close();
    }
  });

  it('has nothing applied, and does not run again, when it queued more text than can be written', async () => {
    const text = 'x'.repeat(60_000_000);
    let runs = 0;
    const error = await rejection(
      one.locks.withLock('endless', ({ multi }) => {
        runs += 1;
        for (let i = 0; i < 10; i += 1) multi.set(one.key(`endless:${i}`), text);
      }),
    );
    expect(error).toBeInstanceOf(LockTransactionError);
    expect(error).toMatchObject({ applied: 'none', cause: expect.any(RangeError) });
    expect([runs, await data('endless:0'), await one.redis.exists(ownerKey('endless'))]).toEqual([
      1,
      null,
      0,
    ]);
  });

  it('fails as one that was applied when its replies cannot be read', async () => {
    Command.setReplyTransformer('append', () => {
      throw new Error('unreadable');
    });
    try {
      const error = await rejection(
        one.locks.withLock('unreadable', ({ multi }) => multi.append(one.key('unreadable'), 'x')),
      );
      expect(error).toBeInstanceOf(LockTransactionError);
      expect(error).toMatchObject({
        applied: 'partial',
        failures: [{ index: 0, command: 'append', error: { message: 'unreadable' } }],
      });
      expect(await data('unreadable')).toBe('x');
    } finally {
      Command.setReplyTransformer('append', (reply) => reply);
    }
  });

  it('takes two round trips for lock, three commands, commit and release', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const counted = await startLocks({ url: proxy.url });
    try {
      const use = () =>
        counted.locks.withLock('counted', ({ multi }) => {
          multi.incr(counted.key('a')).incr(counted.key('b')).incr(counted.key('c'));
        });
      await use(); // the scripts are known from here on
      proxy.reset();
      await use();
      expect(proxy.roundTrips()).toBe(2);

      proxy.reset();
      await counted.locks.withLock('counted', () => 'nothing queued');
      expect(proxy.roundTrips()).toBe(2);

      proxy.reset();
      await (await counted.locks.acquire('counted')).release();
      expect(proxy.roundTrips()).toBe(2);
      expect(await counted.redis.get(counted.key('c'))).toBe('2');
    } finally {
      await counted.close();
      await proxy.close();
    }
  });

  it('gives the lock up in the very EXEC that applies the commands', async () => {
    const monitor = await one.redis.monitor();
    const commands: string[] = [];
    let ended = false;
    monitor.on('monitor', (_time: string, args: string[]) => {
      if (args.some((arg) => arg.includes(one.prefix))) commands.push(args.join(' '));
      if (args[0]?.toLowerCase() === 'exec' || args[0]?.toLowerCase() === 'multi')
        commands.push(args[0].toUpperCase());
      if (args[1] === 'end of test') ended = true;
    });
    try {
      await one.locks.withLock('monitored', ({ multi }) => {
        multi.set(one.key('monitored'), 1);
      });
      await one.redis.echo('end of test');
      await eventually(() => ended);
    } finally {
      monitor.disconnect();
    }
    const at = (start: string) => commands.findIndex((command) => command.startsWith(start));
    const order = ['MULTI', `DEL ${ownerKey('monitored')}`, `set ${one.key('monitored')}`, 'EXEC'].map(at);
    expect(order).not.toContain(-1);
    // MONITOR shows EXEC before or after what it ran, depending on the version of Redis.
    expect(order[1]).toBeGreaterThan(order[0] ?? 0);
    expect(order[2]).toBeGreaterThan(order[0] ?? 0);
    expect(commands.filter((command) => command.startsWith('DEL '))).toHaveLength(1);
  });

  const robberies: [string, (key: string) => Promise<unknown>][] = [
    ['deleted', (key) => other.redis.del(key)],
    ['taken over by somebody else', (key) => other.redis.set(key, 'somebody else', 'PX', 1_000)],
    [
      'expired',
      (key) =>
        other.redis.pexpire(key, 1).then(() => eventually(async () => !(await other.redis.exists(key)))),
    ],
  ];
  it.each(robberies)('commits nothing when the lock was %s', async (how, rob) => {
    const resource = `robbed: ${how}`;
    const key = `${one.prefix}:{${resource}}`;
    const error = await rejection(
      one.locks.withLock(resource, { retries: 0, autoExtend: false }, async ({ multi }) => {
        multi.set(one.key('robbed'), 'never');
        await rob(key);
      }),
    );
    expect(error).toBeInstanceOf(LockLostError);
    expect(error).toMatchObject({ code: 'LOCK_LOST', resources: [resource], status: 409 });
    expect(await data('robbed')).toBeNull();
    if (how.startsWith('taken')) {
      expect(await one.redis.get(key)).toBe('somebody else');
      await one.redis.del(key);
    }
  });

  it('commits nothing when one of its resources was taken over, and frees the others', async () => {
    const error = await rejection(
      one.locks.withLock(['pair:a', 'pair:b'], { retries: 0 }, async ({ multi }) => {
        multi.set(one.key('pair'), 'never');
        await other.redis.set(ownerKey('pair:b'), 'somebody else', 'PX', 1_000);
      }),
    );
    expect(error).toBeInstanceOf(LockLostError);
    expect(await data('pair')).toBeNull();
    await eventually(async () => (await one.redis.exists(ownerKey('pair:a'))) === 0, 1_000);
    expect(await one.redis.get(ownerKey('pair:b'))).toBe('somebody else');
    await one.redis.del(ownerKey('pair:b'));
  });

  it('runs again under a new lock when the first one was lost, and is applied once', async () => {
    const tokens: string[] = [];
    const result = await one.locks.withLock('again', async ({ multi, lock }) => {
      tokens.push(lock.token);
      multi.incr(one.key('again'));
      if (tokens.length === 1) await other.redis.del(ownerKey('again'));
      return `run ${tokens.length}`;
    });
    expect(result).toBe('run 2');
    expect(new Set(tokens).size).toBe(2);
    expect(await data('again')).toBe('1');
  });

  it('is told that the lock was lost when it cannot be had for the rerun', async () => {
    let runs = 0;
    const error = await rejection(
      one.locks.withLock('once', async ({ multi }) => {
        runs += 1;
        multi.incr(one.key('once'));
        await other.redis.set(ownerKey('once'), 'somebody else', 'PX', 1_000);
      }),
    );
    expect(error).toBeInstanceOf(LockLostError);
    expect(runs).toBe(1);
    expect(await data('once')).toBeNull();
    await one.redis.del(ownerKey('once'));
  });

  it('that throws leaves nothing applied and the lock free, and its own error is what the caller sees', async () => {
    const own = new Error('mine');
    const error = await rejection(
      one.locks.withLock('throws', async ({ multi }) => {
        multi.set(one.key('throws'), 'never');
        throw own;
      }),
    );
    expect(error).toBe(own);
    expect(await data('throws')).toBeNull();
    expect(await one.redis.exists(ownerKey('throws'))).toBe(0);

    const thrown = await rejection(
      one.locks.withLock('throws', ({ multi }) => {
        multi.set(one.key('throws'), 'never');
        throw 'a string, synchronously';
      }),
    );
    expect(thrown).toBe('a string, synchronously');
    expect(await one.redis.exists(ownerKey('throws'))).toBe(0);
  });

  it('case 24: that throws after its lock expired is answered with its own error', async () => {
    const own = new Error('mine');
    const started = performance.now();
    const error = await rejection(
      one.locks.withLock('late', { ttl: 50, autoExtend: false }, async ({ signal }) => {
        await eventually(() => signal.aborted);
        throw own;
      }),
    );
    expect(error).toBe(own);
    expect(performance.now() - started).toBeLessThan(1_000);
  });

  it('that lost its lock with nothing to commit is an error, or a warning where that is wanted', async () => {
    const lose = async ({ lock }: LockContext) => {
      await other.redis.del(ownerKey('nothing'));
      return lock.token;
    };
    expect(await rejection(one.locks.withLock('nothing', lose))).toBeInstanceOf(LockLostError);
    expect(await one.locks.withLock('nothing', { onLost: 'report' }, lose)).toContain(':');
  });

  it('that looks at its lock only when it was lost sees that, with the reason', async () => {
    let seen: { held: boolean; aborted: boolean; reason: unknown } | undefined;
    await one.locks.withLock(
      'seen-late',
      { ttl: 100, autoExtend: false, onLost: 'report' },
      async (context) => {
        await eventually(async () => (await one.redis.exists(ownerKey('seen-late'))) === 0);
        const { held, signal } = context.lock;
        seen = { held, aborted: signal.aborted, reason: signal.reason };
      },
    );
    expect(seen).toMatchObject({ held: false, aborted: true, reason: { code: 'LOCK_LOST' } });
  });

  it('case 15: tells commands that failed inside EXEC apart from those that were applied', async () => {
    const key = one.key('partial');
    const error = (await rejection(
      one.locks.withLock('partial', ({ multi }) => {
        multi.set(key, 'text').lpush(key, 'x').set(one.key('partial:b'), 2);
      }),
    )) as LockTransactionError;
    expect(error).toBeInstanceOf(LockTransactionError);
    expect(error).toMatchObject({ applied: 'partial', failures: [{ index: 1, command: 'lpush' }] });
    expect(error.failures[0]?.error.message).toMatch(/^WRONGTYPE/);
    expect(error.replies).toHaveLength(3);
    expect(error.message).not.toMatch(/rolled back/);
    expect(await one.redis.mget(key, one.key('partial:b'))).toEqual(['text', '2']);
    expect(await one.redis.exists(ownerKey('partial'))).toBe(0);
  });

  it('case 15: has nothing applied when Redis refuses to queue one of the commands', async () => {
    const error = await rejection(
      one.locks.withLock('arity', ({ multi }) => {
        multi.set(one.key('arity'), 'never');
        (multi as unknown as Record<string, (key: string) => void>)['lpush']?.(one.key('arity:list'));
      }),
    );
    expect(error).toMatchObject({
      code: 'LOCK_TRANSACTION_FAILED',
      applied: 'none',
      failures: [{ index: 1, command: 'lpush' }],
    });
    expect(await data('arity')).toBeNull();
    expect(await one.redis.exists(ownerKey('arity'))).toBe(0);
  });

  it('shows no values of its commands in errors', async () => {
    const work = one.locks.withLock('values', ({ multi }) => {
      multi.call('incr', one.key('values'), 'not to be logged'); // one argument too many
    });
    const error = await work.catch((refused: unknown) => refused);
    expect(error).toBeInstanceOf(LockTransactionError);
    expect(inspect(error, { depth: 20, showHidden: true })).not.toContain('not to be logged');
    await one.redis.set(one.key('text'), 'text');
    const failing = one.locks.withLock('values', ({ multi }) =>
      multi.lpush(one.key('text'), 'not to be logged'),
    );
    const failed = await failing.catch((reported: unknown) => reported);
    expect(failed).toBeInstanceOf(LockTransactionError);
    expect(inspect(failed, { depth: 20, showHidden: true })).not.toContain('not to be logged');
  });

  it('can commit in between and keep the lock, and tells a listener of its first commit', async () => {
    const heard: unknown[][] = [];
    await one.locks.withLock('stages', async ({ multi, commit, afterCommit, key, lock }) => {
      expect(key('a')).toBe('{stages}:a');
      afterCommit((replies) => heard.push(replies));
      multi.incr(one.key('stages')).incr(one.key('stages'));
      expect(await commit()).toEqual([1, 2]);
      expect(await one.redis.get(ownerKey('stages'))).toBe(lock.token);
      expect(await commit()).toEqual([]);
      multi.incr(one.key('stages'));
    });
    expect(heard).toEqual([[1, 2]]);
    expect(await data('stages')).toBe('3');
    expect(await one.redis.exists(ownerKey('stages'))).toBe(0);
  });

  it('is not run again once a part of it was committed', async () => {
    let runs = 0;
    const error = await rejection(
      one.locks.withLock('half', async (context) => {
        runs += 1;
        context.multi.incr(one.key('half'));
        await context.commit();
        context.multi.incr(one.key('half'));
        await other.redis.del(ownerKey('half'));
      }),
    );
    expect(error).toBeInstanceOf(LockLostError);
    expect([runs, await data('half')]).toEqual([1, '1']);
  });

  it('is seen by an injected LockContext, and only while it runs', async () => {
    expect(() => one.context.multi).toThrow(LockScopeError);
    let kept: LockContext | undefined;
    let multi: LockTransaction | undefined;
    await one.locks.withLock('context', async (context) => {
      kept = context;
      await Promise.resolve();
      expect(one.context.lock).toBe(context.lock);
      expect(one.context.fencingToken).toBe(context.fencingToken);
      expect(one.context.key('items', 7)).toBe('{context}:items:7');
      multi = one.context.multi;
      multi.set(one.key('context'), 1);
    });
    expect(await data('context')).toBe('1');
    expect(() => kept?.lock).toThrow(LockScopeError);
    expect(() => kept?.redis).toThrow(LockScopeError);
    expect(() => multi?.set(one.key('context'), 2)).toThrow(LockScopeError);
    await expect(kept?.commit()).rejects.toBeInstanceOf(LockScopeError);
    await expect(one.context.commit()).rejects.toMatchObject({ code: 'LOCK_NO_SCOPE' });
  });

  it('can take an injected LockContext apart', async () => {
    const { key, watch, commit, afterCommit } = one.context;
    const heard: unknown[] = [];
    await one.locks.withLock('apart', async () => {
      const { multi } = one.context;
      expect(key('n')).toBe('{apart}:n');
      await watch(one.key('apart'));
      afterCommit((replies) => heard.push(replies));
      multi.incr(one.key('apart'));
      expect(await commit()).toEqual([1]);
    });
    expect(heard).toEqual([[1]]);
  });

  it('may return the queue itself, as a function without braces does', async () => {
    const result = await one.locks.withLock('arrow', ({ multi }) => multi.set(one.key('arrow'), 1));
    expect(result).toBeUndefined();
    expect(await data('arrow')).toBe('1');
  });

  it('has no multi with transaction: false', async () => {
    const error = await rejection(
      one.locks.withLock('plain', { transaction: false }, ({ multi }) => {
        multi.set(one.key('plain'), 1);
      }),
    );
    expect(error).toBeInstanceOf(LockScopeError);
    expect(await one.redis.exists(ownerKey('plain'))).toBe(0);
  });

  it('is not needed to be a function by accident', async () => {
    await expect(one.locks.withLock('x', 7 as unknown as () => void)).rejects.toMatchObject({
      code: 'LOCK_CONFIGURATION',
    });
    expect(await one.redis.exists(ownerKey('x'))).toBe(0);
  });

  it('takes objects and Maps where ioredis does', async () => {
    await one.locks.withLock('fields', ({ multi }) => {
      multi
        .hset(one.key('fields'), { a: 1 })
        .hset(one.key('fields'), new Map([['b', 2]]))
        .mset({ [one.key('m')]: 3 });
    });
    expect(await one.redis.hgetall(one.key('fields'))).toEqual({ a: '1', b: '2' });
    expect(await data('m')).toBe('3');
  });

  it('has the replies that ioredis gives for a transaction, also of binary and unnamed commands', async () => {
    const queue = (multi: ChainableCommander, name: string) =>
      multi
        .hset(name, { a: 1, b: 'ü' })
        .hgetall(name)
        .hgetallBuffer(name)
        .hgetBuffer(name, 'b')
        .set(`${name}:bytes`, Buffer.from([0, 255, 128, 13, 10]))
        .getBuffer(`${name}:bytes`)
        .call('HGET', name, 'a')
        .callBuffer('hget', name, 'b')
        .get(`${name}:none`)
        .zadd(`${name}:set`, 1.5, 'x')
        .zrange(`${name}:set`, '0', '-1', 'WITHSCORES')
        .del(name, `${name}:bytes`, `${name}:set`);
    const expected = await queue(one.redis.multi(), one.key('replies')).exec();
    const replies = await one.locks.withLock('replies', ({ multi, commit }) => {
      queue(multi as unknown as ChainableCommander, one.key('replies'));
      return commit();
    });
    expect(replies).toEqual(expected?.map(([, reply]) => reply));
    expect(replies[5]).toEqual(Buffer.from([0, 255, 128, 13, 10]));
  });

  it('with a long name, or many resources, reads the guard before it sends the transaction', async () => {
    const long = 'x'.repeat(500);
    const many = Array.from({ length: 12 }, (_, i) => `two-steps:${i}`);
    for (const resource of [long, many]) {
      const calls = Array.from({ length: 5 }, () =>
        one.locks.withLock(resource, { wait: 5_000 }, ({ multi }) => multi.incr(one.key('two-steps'))),
      );
      await Promise.all(calls);
      const lost = one.locks.withLock(resource, { retries: 0 }, async ({ multi, lock }) => {
        multi.incr(one.key('two-steps'));
        await other.redis.del(ownerKey(lock.resources.at(-1) ?? ''));
      });
      await expect(lost).rejects.toBeInstanceOf(LockLostError);
    }
    expect(await data('two-steps')).toBe('10');
  });

  it('may be given no options at all', async () => {
    const options = undefined as unknown as WithLockOptions;
    expect(await one.locks.withLock('no-options', options, () => 'fine')).toBe('fine');
    expect(await one.redis.exists(ownerKey('no-options'))).toBe(0);
  });

  it('that releases its lock itself has not lost it, and does not run again', async () => {
    let runs = 0;
    const released = await one.locks.withLock('released', async ({ lock }) => {
      await lock.release();
      return 'fine';
    });
    expect(released).toBe('fine');
    const error = await rejection(
      one.locks.withLock('released', async ({ lock, multi }) => {
        runs += 1;
        multi.incr(one.key('released'));
        await lock.release();
      }),
    );
    expect(error).toBeInstanceOf(LockLostError);
    expect([runs, await data('released')]).toEqual([1, null]);
  });

  it("has a script that failed count as possibly applied, and says 'none' only of commands that write nothing", async () => {
    const script = "redis.call('set', KEYS[1], 'x') return redis.error_reply('boom')";
    const error = await rejection(
      one.locks.withLock('script', ({ multi }) => multi.eval(script, 1, one.key('script'))),
    );
    expect(error).toMatchObject({ applied: 'partial' });
    await one.redis.set(one.key('text'), 'text');
    const none = await rejection(
      one.locks.withLock('script', ({ multi }) => multi.lpush(one.key('text'), 'x')),
    );
    expect(none).toMatchObject({ applied: 'none', failures: [{ index: 0 }] });
  });

  it('does not fail because a commit listener does, synchronously or later', async () => {
    const heard: string[] = [];
    await one.locks.withLock('listeners', ({ multi, afterCommit }) => {
      multi.incr(one.key('listeners'));
      afterCommit(() => {
        throw new Error('sync');
      });
      afterCommit((async () => {
        await Promise.resolve();
        throw new Error('async');
      }) as () => void);
      afterCommit(async () => void heard.push('heard'));
    });
    expect(heard).toEqual(['heard']);
    expect(await data('listeners')).toBe('1');
  });

  it('works on 40 locks at once, each applied once', async () => {
    await Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        one.locks.withLock(`many:${i}`, ({ multi }) => multi.incr(one.key('many')).incr(one.key('many'))),
      ),
    );
    expect(await data('many')).toBe('80');
  });

  it('case 19: excludes everybody else while it runs', async () => {
    let inside = 0;
    let most = 0;
    let done = 0;
    const worker = async (locks: LockApplication['locks']) => {
      while (done < 50) {
        await locks
          .withLock('exclusive', async ({ redis, multi }) => {
            most = Math.max(most, (inside += 1));
            const read = Number((await redis.get(one.key('exclusive'))) ?? 0);
            multi.set(one.key('exclusive'), read + 1);
            inside -= 1;
            done += 1;
          })
          .catch((error: { code: string }) => expect(error.code).toBe('LOCK_NOT_ACQUIRED'));
      }
    };
    await Promise.all([worker(one.locks), worker(other.locks), worker(one.locks), worker(other.locks)]);
    expect(most).toBe(1);
    expect(await data('exclusive')).toBe(String(done));
  });

  it('is not available, and does not run, where Redis is not', async () => {
    const nowhere = await startLocks({ connection: 'redis://127.0.0.1:1', commandTimeout: 100 });
    let ran = false;
    const error = await rejection(nowhere.locks.withLock('nowhere', () => (ran = true)));
    expect(error).toBeInstanceOf(LockUnavailableError);
    expect(error).toMatchObject({ status: 503, code: 'LOCK_UNAVAILABLE' });
    expect((error as Error).cause).toBeInstanceOf(Error);
    expect(ran).toBe(false);
    await nowhere.close();
  });
});
