import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockNotAcquiredError, LockUnavailableError } from '../../lib/index.js';
import { ACQUIRE, RELEASE } from '../../lib/redis/lock-scripts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { privateRedis, sharedRedisUrl } from '../support/redis/test-redis.js';

/** Requests that are made in one tick go to Redis in one call. */
describe('requests of one tick', () => {
  let one: LockApplication;
  let other: LockApplication;
  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const ownerKey = (resource: string) => `${one.prefix}:{${resource}}`;
  const names = (name: string, count: number) => Array.from({ length: count }, (_, i) => `${name}:${i}`);

  it('share calls, and each has its own answer', async () => {
    const resources = names('many', 50);
    await (await other.locks.acquire('many:7')).release(); // the script is known
    const taken = await other.locks.acquire('many:7');
    const calls = async () =>
      Number(/cmdstat_evalsha:calls=(\d+)/.exec(await one.redis.info('commandstats'))?.[1] ?? 0);
    const before = await calls();
    const locks = await Promise.all(resources.map((resource) => one.locks.tryAcquire(resource)));
    expect((await calls()) - before).toBeLessThan(10);
    expect(locks.map((lock) => lock?.resources[0])).toEqual(
      resources.map((resource) => (resource === 'many:7' ? undefined : resource)),
    );
    expect(await one.redis.mget(...resources.map(ownerKey))).toEqual(
      locks.map((lock) => lock?.token ?? taken.token),
    );
    await Promise.all(locks.map((lock) => lock?.release()));
    await taken.release();
    expect(await one.redis.exists(...resources.map(ownerKey))).toBe(0);
  });

  it('for one resource several times have one that gets it, and places in the order they were made', async () => {
    const attempts = [1, 2, 3].map(() => one.locks.tryAcquire('twice'));
    const [first, ...others] = await Promise.all([...attempts, one.locks.tryAcquire('beside')]);
    expect([first?.held, others.slice(0, 2)]).toEqual([true, [null, null]]);
    expect(others[2]?.held).toBe(true);
    await Promise.all([first?.release(), others[2]?.release()]);
    const order: number[] = [];
    const all = [1, 2, 3].map(async (n) => {
      const lock = await one.locks.acquire('twice', { wait: 5_000 });
      order.push(n);
      await lock.release();
    });
    await Promise.all(all);
    expect(order).toEqual([1, 2, 3]);
  });

  it('do not let a newcomer overtake who asks again, also when Redis has forgotten both lock and queue', async () => {
    const keys = ['', 'queue:', 'fence:'].map((kind) => `${one.prefix}:${kind}{forgotten}`);
    for (const [newcomer, wish] of [
      ['new:1:1000', '0 5000'],
      ['new:2:1000', ''],
    ]) {
      const waiter = ['old:1:1000', '1700000000000000 5000'];
      const argv = [...waiter, newcomer, wish] as string[];
      await one.redis.eval(ACQUIRE.text, 6, ...keys, ...keys, ...argv);
      expect(await one.redis.get(ownerKey('forgotten'))).toBe('old:1:1000');
      await one.redis.del(...keys);
    }
  });

  it('each give up what is their own, whatever became of the others', async () => {
    const owners = () => one.redis.mget(...['mine', 'taken', 'waited'].map(ownerKey));
    const [mine, taken] = await Promise.all(['mine', 'taken'].map((name) => one.locks.acquire(name)));
    await other.locks.forceRelease('taken');
    const theirs = await other.locks.acquire('taken');
    await Promise.all([mine?.release(), taken?.release()]);
    expect(await owners()).toEqual([null, theirs.token, null]);

    const [again, waitedFor] = await Promise.all(['mine', 'waited'].map((name) => one.locks.acquire(name)));
    const waiting = other.locks.acquire('waited', { wait: 5_000 });
    const queue = `${one.prefix}:queue:{waited}`;
    await eventually(async () => (await one.redis.zcard(queue)) === 1);
    const [next = ''] = await one.redis.zrange(queue, 0, '0');
    await Promise.all([again?.release(), waitedFor?.release()]);
    expect(await owners()).toEqual([null, theirs.token, next]);
    await Promise.all([theirs.release(), (await waiting).release()]);
  });

  it('are each unavailable when their own time is over, and leave nothing when they are answered later', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const slow = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      keyPrefix: one.prefix,
      commandTimeout: 300,
    });
    for (const name of ['slow', 'slow']) await (await slow.locks.acquire(name)).release(); // by hash from then on
    proxy.holdReplies(RELEASE.sha);
    const ends: number[] = [];
    const ask = async (name: string) => {
      const begun = performance.now();
      const failure = await slow.locks.acquire(name).catch((error: unknown) => error);
      ends.push(performance.now() - begun);
      return failure;
    };
    const first = ask('slow:1');
    await eventually(async () => (await one.redis.exists(ownerKey('slow:1'))) === 1);
    const begun = performance.now();
    await elapse(100, begun); // that much later, by the clock
    const failures = await Promise.all([first, ask('slow:2')]);
    for (const failure of failures) expect(failure).toBeInstanceOf(LockUnavailableError);
    expect(Math.min(...ends)).toBeGreaterThanOrEqual(295);
    proxy.passReplies();
    await eventually(async () => (await one.redis.exists(ownerKey('slow:1'), ownerKey('slow:2'))) === 0);
    await slow.app.close();
    slow.redis.disconnect();
    await proxy.close();
  });

  it('do not fail because one of them does', async () => {
    await one.redis.lpush(ownerKey('wrong:3'), 'no lock');
    const outcomes = await Promise.allSettled(names('wrong', 8).map((name) => one.locks.acquire(name)));
    expect(outcomes.map(({ status }) => status === 'fulfilled')).toEqual(
      names('wrong', 8).map((name) => name !== 'wrong:3'),
    );
    expect((outcomes[3] as PromiseRejectedResult).reason).toMatchObject({
      code: 'LOCK_UNAVAILABLE',
      cause: { message: expect.stringMatching(/^WRONGTYPE/) },
    });
    for (const outcome of outcomes) if (outcome.status === 'fulfilled') await outcome.value.release();
    await one.redis.del(ownerKey('wrong:3'));
  });

  it('do not fail because one of them may not have its keys', async () => {
    const server = await privateRedis();
    const admin = new Redis(server.url);
    await admin.acl('SETUSER', 'app', 'on', '>secret', '~*order*', '~*check*', '&*', '+@all');
    const { port } = new URL(server.url);
    const limited = await startLocks({
      url: server.url,
      connection: { port: Number(port), username: 'app', password: 'secret' },
    });
    const resources = ['order:1', 'user:1', 'order:2'];
    const outcomes = await Promise.allSettled(resources.map((name) => limited.locks.acquire(name)));
    expect(outcomes.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    expect((outcomes[1] as PromiseRejectedResult).reason).toBeInstanceOf(LockUnavailableError);
    for (const outcome of outcomes) if (outcome.status === 'fulfilled') await outcome.value.release();
    await limited.close();
    admin.disconnect();
    await server.stop();
  });

  it('reach Redis in the order they were made: who has given up has left nothing when it hears so', async () => {
    for (let round = 0; round < 50; round += 1) {
      const controller = new AbortController();
      const waiting = one.locks.acquire('given up', { wait: 5_000, signal: controller.signal });
      if (round % 2) await Promise.resolve();
      controller.abort();
      await expect(waiting).rejects.toBeInstanceOf(LockNotAcquiredError);
      expect(await one.redis.exists(ownerKey('given up'), `${one.prefix}:queue:{given up}`)).toBe(0);
    }
  });

  it('reach Redis in the order they were made: a lock that is released first can be taken', async () => {
    for (let round = 0; round < 20; round += 1) {
      const lock = await one.locks.acquire('in order');
      const [first, , again] = await Promise.all([
        one.locks.tryAcquire('something else'),
        lock.release(),
        one.locks.tryAcquire('in order'),
      ]);
      expect(again).not.toBeNull();
      await Promise.all([first?.release(), again?.release()]);
    }
  });

  it('look after the right lock when one of several went to a client that does not come for it', async () => {
    const [plain, frozen] = await Promise.all([one.locks.acquire('plain'), one.locks.acquire('frozen')]);
    // A client that listens and does nothing, with a waiter behind it.
    const deaf = new Redis(sharedRedisUrl());
    await deaf.subscribe(`${one.prefix}:wake:deaf`);
    await one.redis.zadd(`${one.prefix}:queue:{frozen}`, 1, 'deaf:1:20000');
    const waiter = other.locks.acquire('frozen', { wait: 15_000, ttl: 20_000 });
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{frozen}`)) === 2);
    const released = performance.now();
    await Promise.all([plain.release(), frozen.release()]);
    expect(await one.redis.get(ownerKey('frozen'))).toBe('deaf:1:20000');
    await (await waiter).release();
    expect(performance.now() - released).toBeLessThan(4_000); // and not the 20 s that the waiter believes in
    deaf.disconnect();
  });

  it('of commits: a big one does not keep small ones from being sent', async () => {
    const long = 'x'.repeat(400);
    let done = false;
    const big = Array.from({ length: 4 }, async (_, i) => {
      while (!done) {
        await one.locks.withLock(`${long}:${i}`, ({ multi }) => multi.incr(one.key('big')));
      }
    });
    for (let round = 0; round < 50; round += 1) {
      await one.locks.withLock('small', ({ multi }) => multi.incr(one.key('small')));
    }
    done = true;
    await Promise.all(big);
    expect(await one.redis.get(one.key('small'))).toBe('50');
    expect(Number(await one.redis.get(one.key('big')))).toBeGreaterThan(4);
  });
});
