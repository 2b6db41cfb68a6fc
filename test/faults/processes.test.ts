import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { assertNothingLeft, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { forkWorker } from '../support/processes/fork-worker.js';
import type { Worker } from '../support/processes/fork-worker.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis, privateRedisAt } from '../support/redis/test-redis.js';

describe('several processes', () => {
  let server: ProvidedRedis;
  let redis: Redis;
  let one: LockApplication;
  let workers: Worker[] = [];

  beforeAll(async () => {
    server = await privateRedis();
    redis = new Redis(server.url);
  });
  afterAll(async () => {
    redis.disconnect();
    await server.stop();
  });
  beforeEach(async () => {
    one = await startLocks({ url: server.url });
  });
  afterEach(async () => {
    await Promise.all(workers.map((worker) => worker.end()));
    workers = [];
    await one.app.close();
    await assertNothingLeft(redis, one.prefix);
    one.redis.disconnect();
  });

  const fork = async () => {
    const worker = await forkWorker(server.url, { keyPrefix: one.prefix, ttl: 2_000, commandTimeout: 1_000 });
    workers.push(worker);
    expect(new Set([process.pid, ...workers.map(({ pid }) => pid)]).size).toBe(workers.length + 1);
    return worker;
  };
  const waiters = (resource: string) => redis.zcard(`${one.prefix}:queue:{${resource}}`);
  const owner = (resource: string) => redis.get(`${one.prefix}:{${resource}}`);
  /** Lets a worker wait in line, and resolves when it does. */
  const queueUp = async (worker: Worker, resource: string, name: string, options = {}) => {
    const before = await waiters(resource);
    await worker.do('queueUp', resource, name, one.key('order'), options);
    await eventually(async () => (await waiters(resource)) === before + 1);
  };
  /** Resolves when a worker has heard what its waiters were answered: the same connection answers this after that. */
  const heard = (worker: Worker) => worker.do('count', `heard:${worker.pid}`, one.key('heard'), 1);
  const order = () => redis.lrange(one.key('order'), 0, -1);
  const took = async (work: () => Promise<unknown>) => {
    const start = performance.now();
    await work();
    return performance.now() - start;
  };

  it('are served first come, first served', async () => {
    const [a, b, c] = [await fork(), await fork(), await fork()];
    const held = await one.locks.acquire('line');
    const names = ['a1', 'b1', 'c1', 'a2', 'a3', 'c2', 'b2', 'b3'];
    for (const name of names) {
      const worker = name.startsWith('a') ? a : name.startsWith('b') ? b : c;
      await queueUp(worker, 'line', name);
    }
    await held.release();
    await eventually(async () => (await order()).length === names.length);
    expect(await order()).toEqual(names);
  });

  it('never lose an update, and none starves', async () => {
    const crew = [await fork(), await fork(), await fork()];
    const pids = await Promise.all(
      crew.map((worker) => worker.do('count', 'counter', one.key('counter'), 100)),
    );
    expect(new Set(pids).size).toBe(3);
    expect(await redis.get(one.key('counter'))).toBe('300');
  });

  it('get the lock of a killed holder when its lease ends', async () => {
    const holder = await fork();
    await holder.do('acquire', 'killed', { ttl: 600 });
    await holder.kill();
    workers = [];
    expect(await redis.pttl(`${one.prefix}:{killed}`)).toBeGreaterThan(0);
    // By its own lease, it would ask much later.
    const lock = await one.locks.acquire('killed', { wait: 10_000, ttl: 60_000 });
    expect(await redis.get(`${one.prefix}:{killed}`)).toBe(lock.token);
    await lock.release();
  });

  it('lose no time over 100 waiters of a killed process', async () => {
    const dead = await fork();
    const held = await one.locks.acquire('graveyard');
    for (let i = 0; i < 100; i += 1) await dead.do('queueUp', 'graveyard', 'dead', one.key('order'));
    await eventually(async () => (await waiters('graveyard')) === 100);
    const next = one.locks.acquire('graveyard', { wait: 5_000 });
    await eventually(async () => (await waiters('graveyard')) === 101);
    await dead.kill();
    workers = [];
    const waited = await took(async () => {
      await held.release();
      await (await next).release();
    });
    expect(waited).toBeLessThan(1_400); // none was granted the lock provisionally
    expect(await waiters('graveyard')).toBe(0);
  });

  it('lose one provisional grant over 100 waiters of a stopped process, which later get their turn', async () => {
    const stopped = await fork();
    const held = await one.locks.acquire('frozen', { ttl: 20_000 });
    for (let i = 0; i < 100; i += 1) {
      await stopped.do('queueUp', 'frozen', 'thawed', one.key('order'), { ttl: 20_000 });
    }
    await eventually(async () => (await waiters('frozen')) === 100);
    const next = one.locks.acquire('frozen', { wait: 10_000, ttl: 20_000 });
    await eventually(async () => (await waiters('frozen')) === 101);
    await heard(stopped);
    stopped.signal('SIGSTOP');
    const waited = await took(async () => {
      await held.release();
      await (await next).release();
    });
    expect(waited).toBeGreaterThan(1_000);
    expect(waited).toBeLessThan(2 * 1_500);
    stopped.signal('SIGCONT');
    await eventually(async () => (await order()).length === 100, 10_000);
    expect(await stopped.do('ended')).toEqual(Array.from({ length: 100 }, () => 'done'));
  });

  it('a holder that was stopped for longer than its lease finds out, and commits nothing', async () => {
    const stopped = await fork();
    await stopped.do('acquire', 'slept', { ttl: 300 });
    const blocked = stopped.do('blockUnderLock', 'slept-work', one.key('slept'), 400, {
      ttl: 300,
      retries: 0,
    });
    const outcome = blocked.catch((error: unknown) => error);
    await eventually(async () => (await redis.exists(one.key('slept:started'))) === 1);
    stopped.signal('SIGSTOP');
    const mine = await one.locks.acquire('slept', { wait: 5_000 });
    const work = await one.locks.acquire('slept-work', { wait: 5_000 });
    stopped.signal('SIGCONT');
    expect(await outcome).toMatchObject({ code: 'LOCK_LOST' });
    expect(await redis.get(one.key('slept'))).toBeNull();
    expect(await stopped.do('isHeld', 'slept')).toEqual({ held: false, aborted: true, remaining: 0 });
    expect(await owner('slept')).toBe(mine.token);
    await mine.release();
    await work.release();
  });

  it('a waiter that was stopped while it got the lock does not start its work with a lock that is gone', async () => {
    const stopped = await fork();
    const held = await one.locks.acquire('late');
    await queueUp(stopped, 'late', 'late riser');
    const next = one.locks.acquire('late', { wait: 10_000 });
    await eventually(async () => (await waiters('late')) === 2);
    await heard(stopped);
    stopped.signal('SIGSTOP');
    await held.release(); // handed to the stopped one, provisionally
    const mine = await next;
    stopped.signal('SIGCONT');
    // It asks, finds the lock taken, and waits again.
    await eventually(async () => (await waiters('late')) === 1);
    expect(await order()).toEqual([]);
    await mine.release();
    await eventually(async () => (await order()).length === 1);
  });

  it('hears that its places were dropped, also when the deadline of the first one was over by then', async () => {
    const stopped = await fork();
    const held = await one.locks.acquire('dropped', { ttl: 20_000 });
    await queueUp(stopped, 'dropped', 'impatient', { ttl: 20_000, wait: 1_000 });
    await queueUp(stopped, 'dropped', 'patient', { ttl: 20_000 });
    await heard(stopped);
    stopped.signal('SIGSTOP');
    await held.release(); // to the impatient one, provisionally
    await eventually(async () => (await owner('dropped')) === null);
    await eventually(async () => (await waiters('dropped')) === 0); // nobody came for it
    stopped.signal('SIGCONT');
    // Whether the impatient one hears of the lock before it looks at the time is not decided; the other one gets it.
    await eventually(async () => (await order()).at(-1) === 'patient', 2_000);
  });

  it('hear of a lease that was made shorter before its holder was killed', async () => {
    const holder = await fork();
    await holder.do('acquire', 'shortened', { ttl: 20_000 });
    const next = one.locks.acquire('shortened', { wait: 10_000, ttl: 20_000 });
    await eventually(async () => (await waiters('shortened')) === 1);
    await holder.do('extend', 'shortened', 500);
    await holder.kill();
    workers = [];
    await (await next).release(); // in vain by the lease that it knew of
  });

  it('case 25: a blocked event loop loses its lock only when it is blocked for too long, and is told before the commit', async () => {
    const busy = await fork();
    const short = await busy.do('blockUnderLock', 'busy', one.key('busy'), 250, { ttl: 400 });
    expect(await redis.get(one.key('busy'))).toBe(short);
    const long = busy.do('blockUnderLock', 'busy', one.key('busy'), 600, { ttl: 300, retries: 0 });
    await expect(long).rejects.toMatchObject({ code: 'LOCK_LOST' });
    expect(await redis.get(one.key('busy'))).toBe(short);
  });

  it('case 22: a late renewal does not create a lock anew that others took and freed meanwhile', async () => {
    const busy = await fork();
    const blocked = busy.do('blockUnderLock', 'renewed', one.key('renewed'), 900, { ttl: 300, retries: 0 });
    const outcome = blocked.catch((error: unknown) => error);
    await eventually(async () => (await owner('renewed')) !== null);
    const lock = await one.locks.acquire('renewed', { wait: 5_000 });
    await lock.release();
    expect(await outcome).toMatchObject({ code: 'LOCK_LOST' });
    expect(await owner('renewed')).toBeNull();
  });

  it('case 32: end on SIGTERM after the work under their locks, with everything committed and given up', async () => {
    const worker = await fork();
    const held = await one.locks.acquire('sigterm:other', { ttl: 10_000 });
    await queueUp(worker, 'sigterm:other', 'never');
    const work = worker.do('workSlowly', 'sigterm', one.key('sigterm'), 400);
    await eventually(async () => (await redis.exists(one.key('sigterm:started'))) === 1);
    worker.signal('SIGTERM');
    await eventually(async () => (await waiters('sigterm:other')) === 0); // waiters are sent away at once
    await work;
    expect(await worker.gone).toBe('SIGTERM');
    workers = [];
    expect(await redis.get(one.key('sigterm'))).toBe('2');
    expect([await owner('sigterm'), await order()]).toEqual([null, []]);
    await held.release();
  });

  it('keep their places when their subscriptions are cut', async () => {
    const other = await fork();
    const held = await one.locks.acquire('cut', { ttl: 20_000 });
    await queueUp(other, 'cut', 'first', { ttl: 20_000 });
    const mine = one.locks.withLock('cut', { wait: 10_000, ttl: 20_000 }, ({ multi }) =>
      multi.rpush(one.key('order'), 'second'),
    );
    await eventually(async () => (await waiters('cut')) === 2);
    await queueUp(other, 'cut', 'third', { ttl: 20_000 });
    await redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await eventually(
      async () => ((await redis.pubsub('CHANNELS', `${one.prefix}*`)) as string[]).length === 2,
    );
    await eventually(async () => (await waiters('cut')) === 3);
    await held.release();
    await mine;
    await eventually(async () => (await order()).length === 3);
    expect(await order()).toEqual(['first', 'second', 'third']);
  });

  it('are served when the lock is given up while their subscriptions are cut', async () => {
    const other = await fork();
    const held = await one.locks.acquire('cut-release', { ttl: 20_000 });
    await queueUp(other, 'cut-release', 'waiter', { ttl: 20_000 });
    await redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await held.release();
    await eventually(async () => (await order()).length === 1);
  });

  it('case 17: wait and are served across SCRIPT FLUSH', async () => {
    const other = await fork();
    const held = await one.locks.acquire('flush', { ttl: 20_000 });
    await queueUp(other, 'flush', 'waiter', { ttl: 20_000 });
    await redis.script('FLUSH');
    await held.release();
    await eventually(async () => (await order()).length === 1);
  });

  it('case 21: hold and wait through a pause of the server, without a rejection that nobody hears', async () => {
    const other = await fork();
    const lock = await one.locks.acquire('paused', { ttl: 1_500 });
    await queueUp(other, 'paused', 'waiter', { ttl: 20_000 });
    await redis.client('PAUSE', 600, 'ALL');
    await redis.ping(); // answered after the pause
    expect(lock.held).toBe(true);
    await lock.release();
    await eventually(async () => (await order()).length === 1);
  });

  it('get in line again after FLUSHALL, and one at a time', async () => {
    const other = await fork();
    await one.locks.acquire('flushall', { ttl: 300 });
    await queueUp(other, 'flushall', 'waiter', { ttl: 300 });
    await redis.flushall();
    await eventually(async () => (await order()).length === 1);
  });
});

describe('a server that is gone', () => {
  it('case 31: does not keep an application from closing, nor its process from ending', async () => {
    const server = await privateRedis();
    const prefix = 'gone';
    const holder = await forkWorker(server.url, {
      keyPrefix: prefix,
      commandTimeout: 300,
      shutdownTimeout: 300,
    });
    const waiter = await forkWorker(server.url, {
      keyPrefix: prefix,
      commandTimeout: 300,
      shutdownTimeout: 300,
    });
    await holder.do('acquire', 'gone', {});
    await waiter.do('queueUp', 'gone', 'waiter', 'list', {});
    const redis = new Redis(server.url, { disconnectTimeout: 0 });
    await eventually(async () => (await redis.zcard(`${prefix}:queue:{gone}`)) === 1);
    redis.disconnect();
    await server.stop();
    const started = performance.now();
    await Promise.all([holder.end(), waiter.end()]);
    expect(performance.now() - started).toBeLessThan(4_000);
  });
});

describe('a server that is restarted', () => {
  it('case 31: is waited for by those who hold and those who wait, each until its deadline', async () => {
    let server = await privateRedis();
    const { port } = new URL(server.url);
    const one = await startLocks({ url: server.url, commandTimeout: 400, ttl: 10_000 });
    const lost = await one.locks.acquire('restart');
    const waiter = one.locks.acquire('restart', { wait: 20_000 });
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{restart}`)) === 1);
    const impatient = one.locks.acquire('restart', { wait: 300 }).catch((error: unknown) => error);
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{restart}`)) === 2);
    await server.stop();
    expect(await impatient).toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'timeout' });

    const stopped = performance.now();
    await elapse(1_000, stopped); // longer than a command may take
    server = await privateRedisAt(Number(port));
    const lock = await waiter; // nothing was kept, so that the lock is free
    expect(await one.redis.get(`${one.prefix}:{restart}`)).toBe(lock.token);
    await lost.release(); // does not take it away
    expect(await one.redis.get(`${one.prefix}:{restart}`)).toBe(lock.token);
    await lock.release();
    await one.close();
    await server.stop();
  });
});
