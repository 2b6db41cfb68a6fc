import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockNotAcquiredError } from '../../lib/index.js';
import type { AcquireOptions, Lock } from '../../lib/index.js';
import { ACQUIRE } from '../../lib/redis/lock-scripts.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { channelOf, messageTo } from '../support/wake-ups.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

describe('waiting for a lock', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  const waiters = (resource: string) => one.redis.zcard(`${one.prefix}:queue:{${resource}}`);
  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);
  /** Starts to wait, and resolves when the place in the queue is taken. */
  const queueUp = async (from: LockApplication, resource: string, options: AcquireOptions = {}) => {
    const before = await waiters(resource);
    const lock = from.locks.acquire(resource, { wait: 5_000, ...options });
    lock.catch(() => undefined); // whoever looks at it hears of it
    await eventually(async () => (await waiters(resource)) > before);
    return { lock };
  };

  it('ends when the holder releases it, in the same process and in another one', async () => {
    for (const from of [one, other]) {
      const held = await one.locks.acquire('simple');
      const { lock } = await queueUp(from, 'simple');
      await held.release();
      const mine = await lock;
      expect(await owner('simple')).toBe(mine.token);
      expect(mine.fencingToken).toBeGreaterThan(held.fencingToken);
      await mine.extend(); // the lease is whole
      expect(await one.redis.pttl(`${one.prefix}:{simple}`)).toBeGreaterThan(1_500);
      await mine.release();
      expect(await owner('simple')).toBeNull();
    }
  });

  it('takes what is free at once', async () => {
    const lock = await one.locks.acquire('free', { wait: Infinity });
    expect(await owner('free')).toBe(lock.token);
    await lock.release();
  });

  it('is first come, first served, across services', async () => {
    const order: string[] = [];
    const held = await one.locks.acquire('fifo');
    const turns = [one, other, one, one, other, other, one].map(async (from, i) => {
      await eventually(async () => (await waiters('fifo')) === i);
      await from.locks.withLock('fifo', { wait: 5_000 }, () => void order.push(`${i}`));
    });
    await eventually(async () => (await waiters('fifo')) === 7);
    await held.release();
    await Promise.all(turns);
    expect(order).toEqual(['0', '1', '2', '3', '4', '5', '6']);
  });

  it('cannot be overtaken by tryAcquire, nor by a newcomer, while the lock changes hands', async () => {
    const held = await one.locks.acquire('barging');
    const { lock } = await queueUp(other, 'barging');
    // The holder dies: from its end on the lock is free, but not for just anybody.
    await one.redis.del(`${one.prefix}:{barging}`);
    expect(await one.locks.tryAcquire('barging')).toBeNull();
    const mine = await lock;
    expect(await owner('barging')).toBe(mine.token);
    await mine.release();
    await held.release();
  });

  it('gives up at its deadline, with the reason, and leaves no place behind', async () => {
    await using _held = await one.locks.acquire('deadline');
    const started = performance.now();
    const refusal = await other.locks.acquire('deadline', { wait: 80 }).catch((error: unknown) => error);
    expect(performance.now() - started).toBeGreaterThanOrEqual(79);
    expect(refusal).toBeInstanceOf(LockNotAcquiredError);
    expect(refusal).toMatchObject({ reason: 'timeout', status: 423 });
    expect((refusal as LockNotAcquiredError).retryAfter).toBeGreaterThan(0);
    expect(await waiters('deadline')).toBe(0);
  });

  it('gives up when it is aborted, with the cause, and leaves no place behind', async () => {
    const held = await one.locks.acquire('aborted');
    const controller = new AbortController();
    const { lock } = await queueUp(other, 'aborted', { wait: Infinity, signal: controller.signal });
    controller.abort(new Error('not wanted any more'));
    await expect(lock).rejects.toMatchObject({
      reason: 'aborted',
      cause: { message: 'not wanted any more' },
    });
    expect(await waiters('aborted')).toBe(0);
    await held.release();
    expect(await owner('aborted')).toBeNull();
  });

  it('passes on a grant that crosses the giving up', async () => {
    for (let i = 0; i < 30; i += 1) {
      const held = await one.locks.acquire('crossing');
      const controller = new AbortController();
      const { lock } = await queueUp(other, 'crossing', { signal: controller.signal });
      const { lock: next } = await queueUp(one, 'crossing');
      // Both at once: whichever comes first, the next in line has it in the end.
      const released = held.release();
      controller.abort();
      const first = await lock.catch(() => undefined);
      await first?.release();
      await released;
      await (await next).release();
    }
    expect([await waiters('crossing'), await owner('crossing')]).toEqual([0, null]);
  });

  it('is refused at once when maxWaiters wait, in whatever process', async () => {
    const limited = await startLocks({ keyPrefix: one.prefix, maxWaiters: 2 });
    const held = await one.locks.acquire('full');
    const first = await queueUp(one, 'full');
    const second = await queueUp(other, 'full');
    const refusal = await limited.locks.acquire('full', { wait: Infinity }).catch((error: unknown) => error);
    expect(refusal).toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'queue_full', status: 503 });
    expect(await waiters('full')).toBe(2);
    await held.release();
    await (await first.lock).release();
    await (await second.lock).release();
    await limited.app.close();
    limited.redis.disconnect();
  });

  it('uses the module default for wait, and tryAcquire ignores it', async () => {
    const patient = await startLocks({ keyPrefix: one.prefix, wait: 60 });
    await using _held = await one.locks.acquire('default');
    await expect(patient.locks.acquire('default')).rejects.toMatchObject({ reason: 'timeout' });
    expect(await patient.locks.tryAcquire('default', { wait: 10_000 })).toBeNull();
    await expect(patient.locks.acquire('default', { wait: 0 })).rejects.toMatchObject({ reason: 'busy' });
    await patient.app.close();
    patient.redis.disconnect();
  });

  it('takes over from a holder that is silent at the end of its lease', async () => {
    await one.locks.acquire('silent', { ttl: 200, autoExtend: false });
    // By its own lease, it would ask much later.
    const { lock } = await queueUp(other, 'silent', { ttl: 60_000, wait: 10_000 });
    const mine = await lock;
    expect(await owner('silent')).toBe(mine.token);
    await mine.release();
  });

  it('hears of a holder whose lease is shorter than the last one', async () => {
    const long = await one.locks.acquire('shorter', { ttl: 30_000 });
    const { lock: short } = await queueUp(one, 'shorter', { ttl: 200, autoExtend: false });
    const { lock: last } = await queueUp(other, 'shorter', { wait: 10_000 });
    await long.release();
    await short; // never released
    const mine = await last; // in vain by the lease that it knew of
    expect(await owner('shorter')).toBe(mine.token);
    await mine.release();
  });

  it('sends nothing while it waits', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const idle = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, keyPrefix: one.prefix });
    const held = await one.locks.acquire('quiet', { ttl: 20_000 });
    const waiting = await Promise.all(
      Array.from({ length: 20 }, () =>
        idle.locks.acquire('quiet', { wait: Infinity }).then((lock) => lock.release()),
      ).map((done) => ({ done })),
    );
    await eventually(async () => (await waiters('quiet')) === 20);
    proxy.reset();
    const start = performance.now();
    await elapse(500, start);
    expect(proxy.roundTrips()).toBe(0);
    await held.release();
    await Promise.all(waiting.map(({ done }) => done));
    await idle.app.close();
    idle.redis.disconnect();
    await proxy.close();
  });

  it('hands a lock over inside of a process in one round trip each, and without a message', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const local = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, keyPrefix: one.prefix });
    const held = await local.locks.acquire('local', { wait: 1_000 });
    const first = local.locks.acquire('local', { wait: 5_000 });
    const second = local.locks.acquire('local', { wait: 5_000 });
    await eventually(async () => (await waiters('local')) === 2);
    const monitor = await one.redis.monitor();
    const published: string[] = [];
    monitor.on('monitor', (_time: string, [command, ...args]: string[]) => {
      if (command?.toLowerCase() === 'publish' && args.join().includes(one.prefix))
        published.push(args.join(' '));
    });
    proxy.reset();
    await held.release();
    await (await first).release();
    await (await second).release();
    expect(proxy.roundTrips()).toBe(3);
    expect(published).toEqual([]);
    monitor.disconnect();
    await local.app.close();
    local.redis.disconnect();
    await proxy.close();
  });

  it('for several resources waits in line for each, and has all or none', async () => {
    const b = await other.locks.acquire('m:b');
    const all = one.locks.acquire(['m:c', 'm:a', 'm:b'], { wait: 5_000 });
    await eventually(async () => (await waiters('m:b')) === 1);
    expect(await owner('m:a')).not.toBeNull(); // taken, and kept alive
    expect(await owner('m:c')).toBeNull();
    await b.release();
    const lock = await all;
    expect(lock.resources).toEqual(['m:a', 'm:b', 'm:c']);
    for (const resource of lock.resources) expect(await owner(resource)).toBe(lock.token);
    expect(lock.fencingTokens.size).toBe(3);
    await lock.release();

    const again = await other.locks.acquire('m:b');
    await expect(one.locks.acquire(['m:a', 'm:b'], { wait: 60 })).rejects.toMatchObject({
      reason: 'timeout',
    });
    expect([await owner('m:a'), await waiters('m:b')]).toEqual([null, 0]);
    await again.release();
  });

  it('for several resources in opposite order never deadlocks', async () => {
    let done = 0;
    const pairs = [
      ['d:a', 'd:b'],
      ['d:b', 'd:a'],
      ['d:b', 'd:c'],
      ['d:c', 'd:a'],
    ];
    await Promise.all(
      pairs.flatMap((pair) =>
        [one, other].map(async ({ locks }) => {
          for (let i = 0; i < 10; i += 1) {
            await locks.withLock(pair, { wait: 10_000 }, async () => {
              done += 1;
              await Promise.resolve();
            });
          }
        }),
      ),
    );
    expect(done).toBe(80);
  });

  it('keeps several workers of two services apart, and starves none', async () => {
    const turns = new Map<string, number>();
    let inside = 0;
    let most = 0;
    const worker = async (from: LockApplication, name: string) => {
      for (let i = 0; i < 25; i += 1) {
        await from.locks.withLock('crowd', { wait: 10_000 }, async ({ redis, multi }) => {
          most = Math.max(most, (inside += 1));
          multi.set(one.key('crowd'), Number((await redis.get(one.key('crowd'))) ?? 0) + 1);
          inside -= 1;
          turns.set(name, (turns.get(name) ?? 0) + 1);
        });
      }
    };
    await Promise.all([one, other].flatMap((from, i) => [0, 1, 2, 3].map((j) => worker(from, `${i}${j}`))));
    expect(most).toBe(1);
    expect(await one.redis.get(one.key('crowd'))).toBe('200');
    expect([...turns.values()]).toEqual(Array.from({ length: 8 }, () => 25));
  });

  it('is ended by the closing of its application, with the reason, and leaves no place behind', async () => {
    const closing = await startLocks({ keyPrefix: one.prefix });
    const held = await one.locks.acquire('closing');
    const { lock } = await queueUp(closing, 'closing', { wait: Infinity });
    const closed = closing.app.close();
    await expect(lock).rejects.toMatchObject({ reason: 'shutdown', status: 503 });
    expect(await waiters('closing')).toBe(0);
    await closed;
    closing.redis.disconnect();
    await held.release();
  });

  it('minHold: is released no sooner than that, without keeping the caller', async () => {
    const started = performance.now();
    await one.locks.withLock('min-hold', { minHold: 700, ttl: 60_000 }, ({ multi }) =>
      multi.set(one.key('mh'), 1),
    );
    expect(await one.redis.exists(`${one.prefix}:{min-hold}`)).toBe(1); // the caller had not to wait for it
    expect(await one.redis.get(one.key('mh'))).toBe('1');
    expect(await other.locks.tryAcquire('min-hold')).toBeNull();
    expect(await one.redis.pttl(`${one.prefix}:{min-hold}`)).toBeLessThanOrEqual(700);
    const next: Lock = await other.locks.acquire('min-hold', { wait: 10_000 });
    expect(performance.now() - started).toBeGreaterThanOrEqual(699);
    await next.release();
  });

  it('minHold: is known to those who wait, also when the application closes meanwhile', async () => {
    const closing = await startLocks({ keyPrefix: one.prefix });
    const held = await closing.locks.acquire('min-hold-close', { minHold: 400, ttl: 20_000 });
    const { lock } = await queueUp(other, 'min-hold-close', { ttl: 20_000, wait: 10_000 });
    await held.release();
    await closing.app.close();
    closing.redis.disconnect();
    await (await lock).release(); // in vain by the lease of 20 s that it knew of
  });

  it('an acquire that is under way when the application closes leaves nothing behind', async () => {
    const closing = await startLocks({ keyPrefix: one.prefix });
    const acquired = closing.locks.acquire('on-the-way', { ttl: 20_000 }).catch((error: unknown) => error);
    await closing.app.close();
    expect(await acquired).toMatchObject({ reason: 'shutdown' });
    expect(await owner('on-the-way')).toBeNull();
    closing.redis.disconnect();
  });

  it('an ask that is sent again after its waiter has had the lock does not take it once more', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const shaky = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      keyPrefix: one.prefix,
      ttl: 20_000,
    });
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    const holder = shaky.locks.withLock('again', async ({ multi }) => {
      multi.incr(one.key('again'));
      await gate;
    });
    await eventually(async () => (await owner('again')) !== null);
    const waiter = shaky.locks.withLock('again', { wait: 10_000 }, ({ multi }) =>
      multi.incr(one.key('again')),
    );
    await eventually(async () => (await waiters('again')) === 1);
    // It asks again, and the answer does not come; the hand-over comes on another connection.
    const [token = ''] = await one.redis.zrange(`${one.prefix}:queue:{again}`, 0, '0');
    proxy.holdReplies(ACQUIRE.sha);
    await one.redis.publish(channelOf(one.prefix, token), messageTo(token, `${one.prefix}:{again}`));
    proxy.reset();
    await eventually(() => proxy.roundTrips() > 0);
    finish();
    await holder;
    proxy.cut(ACQUIRE.sha);
    proxy.passReplies();
    await waiter;
    await eventually(async () => (await owner('again')) === null, 1_000);
    expect([await one.redis.get(one.key('again')), await waiters('again')]).toEqual(['2', 0]);
    await shaky.app.close();
    shaky.redis.disconnect();
    await proxy.close();
  });

  it('keeps a lock that it was granted, when the commit that had handed it over is answered later', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const local = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, keyPrefix: one.prefix });
    await local.locks.withLock('warm', ({ multi }) => multi.incr(one.key('late'))); // the commit connection is known
    let finish = () => undefined as void;
    const gate = new Promise<void>((resolve) => (finish = resolve));
    const holder = local.locks.withLock('late', async ({ multi }) => {
      multi.incr(one.key('late'));
      await gate;
    });
    await eventually(async () => (await owner('late')) !== null);
    const waiting = local.locks.acquire('late', { wait: 5_000 });
    await eventually(async () => (await waiters('late')) === 1);
    const [token = ''] = await one.redis.zrange(`${one.prefix}:queue:{late}`, 0, '0');
    proxy.holdReplies(one.key('late'));
    finish();
    await eventually(async () => (await owner('late')) === token);
    await one.redis.publish(channelOf(one.prefix, token), messageTo(token, `${one.prefix}:{late}`));
    const mine = await waiting;
    proxy.passReplies();
    await holder;
    await local.locks.inspect('late'); // whatever was sent before has been done
    expect([await owner('late'), mine.held]).toEqual([mine.token, true]);
    await mine.release();
    await local.app.close();
    local.redis.disconnect();
    await proxy.close();
  });

  it('hears of a lock that is handed to it before its first ask is answered', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const behind = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, keyPrefix: one.prefix });
    await (await behind.locks.acquire('early', { wait: 1_000 })).release(); // connected, and the scripts are known
    const held = await one.locks.acquire('early');
    proxy.holdReplies(ACQUIRE.sha);
    const waiting = behind.locks.acquire('early', { wait: 5_000 });
    await eventually(async () => (await waiters('early')) === 1);
    await held.release();
    await eventually(async () => (await owner('early')) !== null);
    const handedOver = Number(await one.redis.hget(`${one.prefix}:fence:{early}`, 'last'));
    proxy.passReplies();
    const mine = await waiting;
    // This very grant, which would have ended if nobody had come for it.
    expect([mine.fencingToken, await owner('early')]).toEqual([handedOver, mine.token]);
    await mine.release();
    await behind.app.close();
    behind.redis.disconnect();
    await proxy.close();
  });

  it('is not ended by an outage, nor by others who give up during it', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const shaky = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      keyPrefix: one.prefix,
      commandTimeout: 200,
      ttl: 20_000,
    });
    const held = await one.locks.acquire('outage', { ttl: 20_000 });
    const { lock: impatient } = await queueUp(shaky, 'outage', { wait: 300 });
    const { lock: patient } = await queueUp(shaky, 'outage', { wait: Infinity });
    await (await shaky.locks.acquire('outage:heard')).release(); // the answers before this one are there as well
    proxy.holdReplies();
    await expect(impatient).rejects.toMatchObject({ reason: 'timeout' });
    proxy.passReplies();
    await held.release();
    await (await patient).release();
    await eventually(async () => (await waiters('outage')) === 0);
    await shaky.app.close();
    shaky.redis.disconnect();
    await proxy.close();
  });

  it('minHold: is no longer than the work when the work takes longer', async () => {
    const lock = await one.locks.acquire('min-hold-2', { minHold: 30 });
    const started = performance.now();
    await elapse(40, started);
    await lock.release();
    expect(await owner('min-hold-2')).toBeNull();
  });
});
