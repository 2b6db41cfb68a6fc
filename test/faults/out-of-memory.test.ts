import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import type { AcquireOptions } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';

/** `maxmemory` with `noeviction`: Redis refuses whatever may need memory, unless a script has already written. */
describe('while the memory of Redis is full', () => {
  let server: ProvidedRedis;
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    server = await privateRedis();
    one = await startLocks({ url: server.url, ttl: 600 });
    other = await startLocks({ url: server.url, keyPrefix: one.prefix, ttl: 600 });
    for (const { locks } of [one, other]) {
      const held = await locks.acquire('warm');
      const next = locks.acquire('warm', { wait: 5_000 });
      await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{warm}`)) === 1);
      await held.release();
      await (await next).release(); // connections are open and scripts known
    }
  });
  afterEach(() => fill(false));
  afterAll(async () => {
    await other.app.close();
    other.redis.disconnect();
    await one.close();
    await server.stop();
  });

  const fill = (isFull: boolean) => one.redis.config('SET', 'maxmemory', isFull ? 1 : 0);
  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);
  const waiters = (resource: string) => one.redis.zcard(`${one.prefix}:queue:{${resource}}`);
  const queueUp = async (resource: string, from: LockApplication, options: AcquireOptions = {}) => {
    const before = await waiters(resource);
    const lock = from.locks.acquire(resource, { wait: 10_000, ...options });
    lock.catch(() => undefined); // heard where it is awaited
    await eventually(async () => (await waiters(resource)) > before);
    await from.locks.tryAcquire(resource);
    return { lock };
  };
  /** Longer than a lease without renewals. */
  const renewedTwice = async (resource: string) => {
    for (let times = 0; times < 2; times += 1) {
      let before = await one.redis.pttl(`${one.prefix}:{${resource}}`);
      await eventually(async () => {
        const left = await one.redis.pttl(`${one.prefix}:{${resource}}`);
        const isRenewed = left > before;
        before = left;
        return isRenewed;
      });
    }
  };

  it.each([
    ['inside of its process', () => one],
    ['to another process', () => other],
  ])('a lock is handed over %s, renewed and released', async (where, to) => {
    const resource = `full ${where}`;
    const held = await one.locks.acquire(resource);
    const { lock } = await queueUp(resource, to());
    const after = await queueUp(resource, to());
    await fill(true);
    await held.release();
    const mine = await lock;
    await renewedTwice(resource);
    expect([mine.held, await owner(resource)]).toEqual([true, mine.token]);
    await mine.release();
    const last = await after.lock;
    await renewedTwice(resource);
    expect([last.held, await owner(resource)]).toEqual([true, last.token]);
    await last.release();
    expect(await owner(resource)).toBeNull();
  });

  it('a waiter keeps its place beyond the lease it knew of, and has the lock as its turn comes', async () => {
    const held = await other.locks.acquire('left');
    const { lock } = await queueUp('left', one, { ttl: 20_000 });
    await fill(true);
    for (let lease = 0; lease < 3; lease += 1) await renewedTwice('left'); // it has asked meanwhile
    expect([await owner('left'), await waiters('left')]).toEqual([held.token, 1]);
    await held.release();
    const mine = await lock;
    expect(await owner('left')).toBe(mine.token);
    await mine.release();
  });

  it('a new lock is refused with the word of Redis as its cause, and with room again it is free', async () => {
    await fill(true);
    const refusal = await one.locks.acquire('new', { wait: 5_000 }).catch((error: unknown) => error);
    expect(refusal).toMatchObject({ code: 'LOCK_UNAVAILABLE' });
    expect(String((refusal as Error).cause)).toContain('OOM');
    await fill(false);
    await (await one.locks.acquire('new')).release();
  });
});

describe('a waiter that has a place', () => {
  it('goes on waiting while Redis refuses to answer, and is ended by a refusal that does not pass', async () => {
    const server = await privateRedis();
    const one = await startLocks({ url: server.url });
    const other = await startLocks({ url: server.url, keyPrefix: one.prefix });
    const waiters = () => one.redis.zcard(`${one.prefix}:queue:{busy}`);
    const held = await other.locks.acquire('busy', { ttl: 500, autoExtend: false });
    let ended: string | undefined;
    const waiting = one.locks.acquire('busy', { wait: 20_000 });
    void waiting.then(
      () => (ended = 'granted'),
      (error: { code: string }) => (ended = error.code),
    );
    await eventually(async () => (await waiters()) === 1);
    await one.redis.config('SET', 'min-replicas-to-write', 1); // scripts that write: NOREPLICAS
    const refused = async () =>
      Number(/errorstat_NOREPLICAS:count=(\d+)/.exec(await one.redis.info('errorstats'))?.[1] ?? 0);
    await eventually(async () => (await refused()) >= 3); // asked at the end of the lease, and again
    expect([ended, await waiters()]).toEqual([undefined, 1]);
    await one.redis.config('SET', 'min-replicas-to-write', 0);
    const lock = await waiting;
    expect(await one.redis.get(`${one.prefix}:{busy}`)).toBe(lock.token);

    const next = other.locks.acquire('busy', { wait: 20_000 }).catch((error: unknown) => error);
    await eventually(async () => (await waiters()) === 1);
    await one.redis.del(`${one.prefix}:queue:{busy}`);
    await one.redis.set(`${one.prefix}:queue:{busy}`, 'of another type', 'PX', 20_000);
    await one.redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub'); // whose waiters ask when they are connected again
    expect(await next).toMatchObject({ code: 'LOCK_UNAVAILABLE' });
    await one.redis.del(`${one.prefix}:queue:{busy}`);
    await lock.release();
    await held.release();
    await other.app.close();
    other.redis.disconnect();
    await one.app.close();
    one.redis.disconnect();
    await server.stop();
  });
});
