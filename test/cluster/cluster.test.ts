import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Cluster } from 'ioredis';
import { LockLostError, LockTransactionError } from '../../lib/index.js';
import type { LockState, RedisLockModuleOptions } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startRedisCluster } from '../support/redis/redis-cluster.js';
import type { RedisCluster } from '../support/redis/redis-cluster.js';
import { rulesOfReadme } from '../support/rules-of-readme.js';
import { Applications, slotOf } from './support.js';

describe('a Redis Cluster', () => {
  let cluster: RedisCluster;
  let redis: Cluster;
  const applications = new Applications();
  const { prefix } = applications;

  beforeAll(async () => {
    cluster = await startRedisCluster();
    redis = new Cluster(cluster.nodes);
  });
  afterAll(async () => {
    await applications.close();
    redis?.disconnect();
    await cluster?.stop();
  });

  const startLocks = (options: RedisLockModuleOptions = {}) =>
    applications.start({ connection: { nodes: cluster.nodes }, ...options });

  /** Resources of different slots, the first of each of the masters. */
  const spread = (name: string) => {
    const third = (resource: string) => Math.floor((3 * slotOf(resource)) / 16_384);
    const names = Array.from({ length: 100 }, (_, i) => `${name}:${i}`);
    return [0, 1, 2].map((n) => names.find((each) => third(each) === n) ?? '');
  };

  it('has locks that exclude each other, are renewed and released, on each of its masters', async () => {
    const [one, other] = [await startLocks(), await startLocks()];
    for (const resource of spread('excluded')) {
      const lock = await one.acquire(resource, { ttl: 300 });
      expect(await other.tryAcquire(resource)).toBeNull();
      expect(await redis.get(`${prefix}:{${resource}}`)).toBe(lock.token);
      const since = performance.now();
      await elapse(600, since); // twice its ttl
      expect(await redis.get(`${prefix}:{${resource}}`)).toBe(lock.token);
      await lock.release();
      expect(await redis.exists(`${prefix}:{${resource}}`)).toBe(0);
    }
  });

  it('hands a lock over to those who wait, in order, also between processes', async () => {
    const [one, other] = [await startLocks(), await startLocks()];
    for (const resource of spread('in line')) {
      const held = await one.acquire(resource);
      const order: number[] = [];
      const waiting: Promise<unknown>[] = [];
      for (let place = 0; place < 6; place += 1) {
        waiting.push(
          (place % 2 ? one : other).withLock(resource, { wait: 10_000 }, () => void order.push(place)),
        );
        await eventually(async () => (await redis.zcard(`${prefix}:queue:{${resource}}`)) === place + 1);
      }
      const released = performance.now();
      await held.release();
      await Promise.all(waiting);
      expect(order).toEqual([0, 1, 2, 3, 4, 5]);
      expect(performance.now() - released).toBeLessThan(1_400); // less than a grant that nobody hears of
    }
  });

  it('tells waiters on channels of their slot, which no other master hears of, and leaves them in the end', async () => {
    const [one, other] = [await startLocks(), await startLocks()];
    const masters = cluster.masters.map(({ admin }) => admin);
    const channels = async (kind: 'CHANNELS' | 'SHARDCHANNELS') =>
      (await Promise.all(masters.map((each) => each.call('PUBSUB', kind, `${prefix}:wake:{told*`)))).flat();
    const published = async () => {
      const infos = await Promise.all(masters.map((each) => each.cluster('INFO')));
      return infos.map((info) => /cluster_stats_messages_publish_sent:(\d+)/.exec(String(info))?.[1] ?? '0');
    };
    const before = await published();
    const resources = spread('told');
    for (const resource of resources) {
      const held = await one.acquire(resource);
      const waiting = other.acquire(resource, { wait: 10_000 });
      await eventually(async () => (await redis.zcard(`${prefix}:queue:{${resource}}`)) === 1);
      await held.release();
      await (await waiting).release();
    }
    expect(
      (await channels('SHARDCHANNELS')).map((name) => String(name).replace(/:[^:]*$/, '')).sort(),
    ).toEqual(resources.map((resource) => `${prefix}:wake:{${resource}}`).sort());
    expect((await Promise.all(masters.map((each) => each.pubsub('CHANNELS', `${prefix}:*`)))).flat()).toEqual(
      [],
    );
    expect(await published()).toEqual(before);
    await eventually(async () => (await channels('SHARDCHANNELS')).length === 0, 15_000);
  });

  it('subscribes to nothing for a free lock', async () => {
    const one = await startLocks();
    await (await one.acquire('free', { wait: 10_000 })).release();
    const masters = cluster.masters.map(({ admin }) => admin);
    const channels = await Promise.all(
      masters.map((each) => each.pubsub('SHARDCHANNELS', `${prefix}:wake:{free}*`)),
    );
    expect(channels.flat()).toEqual([]);
  });

  it('commits guarded, and not at all without the lock', async () => {
    const locks = await startLocks();
    for (const resource of spread('guarded')) {
      const replies: unknown[][] = [];
      await locks.withLock(resource, ({ multi, key, afterCommit }) => {
        afterCommit((each) => replies.push(each));
        multi.incr(key('n')).rpush(key('log'), 'a');
      });
      expect(replies).toEqual([[1, 1]]);
      expect(await redis.exists(`${prefix}:{${resource}}`)).toBe(0);
      const lost = locks.withLock(resource, { retries: 0 }, async ({ multi, key }) => {
        multi.incr(key('n'));
        await redis.del(`${prefix}:{${resource}}`);
      });
      await expect(lost).rejects.toBeInstanceOf(LockLostError);
      expect(await redis.get(`{${resource}}:n`)).toBe('1');
    }
  });

  it('watches keys', async () => {
    const locks = await startLocks();
    let runs = 0;
    await locks.withLock('watched', async ({ watch, multi, key }) => {
      await watch(key('seen'));
      multi.incr(key('n'));
      if ((runs += 1) === 1) await redis.set(key('seen'), 'changed');
    });
    expect([runs, await redis.get('{watched}:n')]).toEqual([2, '1']);
  });

  it('gives back what watched when a transaction cannot have all the locks that its work relies on', async () => {
    const locks = await startLocks();
    const [outer = '', inner = ''] = spread('watching');
    const work = () =>
      locks.withLock(outer, () =>
        locks.withLock([outer, inner], async ({ watch, multi, key }) => {
          await watch(key('seen'));
          multi.incr(key('n'));
        }),
      );
    // More often than there are connections that watch.
    for (let i = 0; i < 9; i += 1) {
      await expect(work()).rejects.toMatchObject({ code: 'LOCK_TRANSACTION_FAILED', applied: 'none' });
    }
  });

  it('case 18: refuses a key of another slot before anything is sent, naming both', async () => {
    const locks = await startLocks();
    let reached = false;
    const refused = locks.withLock('orders', ({ multi, key }) => {
      multi.incr(key('n'));
      expect(() => multi.set('elsewhere', 1)).toThrow(LockTransactionError);
      reached = true;
    });
    await expect(refused).rejects.toMatchObject({
      code: 'LOCK_TRANSACTION_FAILED',
      applied: 'none',
      message: expect.stringMatching(/"elsewhere".*"orders"/),
    });
    expect(reached).toBe(true);
    await expect(locks.withLock('orders', ({ watch }) => watch('elsewhere'))).rejects.toMatchObject({
      message: expect.stringMatching(/"elsewhere".*"orders"/),
    });
    const called = locks.withLock('orders', ({ multi }) => {
      multi.call('MSET', '{orders}:a', '1', 'elsewhere', '2');
    });
    await expect(called).rejects.toMatchObject({ applied: 'none' });
    expect(await redis.exists('{orders}:n')).toBe(0);
  });

  it('has resources of several slots all or none, which no transaction can have together', async () => {
    const [one, other] = [await startLocks(), await startLocks()];
    const several = spread('several');
    const lock = await one.acquire(several);
    expect([...lock.fencingTokens.keys()].sort()).toEqual([...several].sort());
    expect(await other.tryAcquire(several)).toBeNull();
    for (const resource of several) expect(await other.tryAcquire(resource)).toBeNull();
    await lock.release();
    const last = await one.acquire(several[2] ?? '');
    expect(await other.tryAcquire(several)).toBeNull();
    for (const resource of several.slice(0, 2)) {
      expect(await redis.exists(`${prefix}:{${resource}}`)).toBe(0); // not left behind
    }
    const waiting = other.withLock(several, { wait: 5_000 }, () => 'had them');
    await last.release();
    expect(await waiting).toBe('had them');
    await expect(
      one.withLock(several, ({ multi }) => void multi.incr(`{${[...several].sort()[0]}}:n`)),
    ).rejects.toMatchObject({ applied: 'none', message: expect.stringContaining('slot') });
    await one.withLock(['a', 'b'], { slot: 'together' }, ({ multi, key }) => multi.incr(key('n')));
    expect(await redis.get('{together}:n')).toBe('1');
  });

  it('case 18b: applies a commit once whose reply was lost, and says that it was applied', async () => {
    const locks = await startLocks({ commandTimeout: 1_000 });
    await locks.withLock('cut', ({ multi, key }) => multi.set(key('warm'), 1));
    const master = cluster.masters[Math.floor((3 * slotOf('cut')) / 16_384)];
    const result = await locks.withLock('cut', async ({ multi, key }) => {
      multi.incr(key('n'));
      // The reply comes after the connection has ended: it is stopped, hears the commit, and kills its clients first.
      await master?.admin.call('CLIENT', 'PAUSE', '300', 'WRITE');
      setTimeout(() => void master?.admin.call('CLIENT', 'KILL', 'TYPE', 'normal'), 100);
      return 'mine';
    });
    expect([result, await redis.get('{cut}:n')]).toEqual(['mine', '1']);
  });

  it('shows, lists and takes away locks', async () => {
    const locks = await startLocks();
    const resources = spread('operated');
    const held = await Promise.all(resources.map((resource) => locks.acquire(resource)));
    expect((await locks.inspect(resources[1] ?? ''))?.holder).toBe(held[1]?.token);
    const states: LockState[] = [];
    for await (const state of locks.list({ match: 'operated:*' })) states.push(state);
    expect(states.map(({ resource }) => resource).sort()).toEqual([...resources].sort());
    for (const resource of resources) expect(await locks.forceRelease(resource)).toBe(true);
    for (const resource of resources) expect(await locks.inspect(resource)).toBeNull();
  });

  it('is enough for a user with the rights that the README names', async () => {
    const nodes = [...cluster.masters, ...cluster.replicas].map(({ admin }) => admin);
    await Promise.all(
      nodes.map((each) => each.acl('SETUSER', 'locks', 'on', '>secret', ...rulesOfReadme('cluster'))),
    );
    const keys = ['~{data}:*', '+incr'];
    await Promise.all(nodes.map((each) => each.acl('SETUSER', 'locks', ...keys)));
    const options = { redisOptions: { username: 'locks', password: 'secret' } };
    const start = () => startLocks({ connection: { nodes: cluster.nodes, options }, keyPrefix: 'lock' });
    const [one, other] = [await start(), await start()];
    const held = await one.acquire('allowed', { slot: 'data' });
    const waiting = other.withLock('allowed', { slot: 'data', wait: 10_000 }, ({ multi, key }) =>
      multi.incr(key('n')),
    );
    await eventually(async () => (await redis.zcard('lock:queue:{data}:allowed')) === 1);
    const channels = nodes.map((each) => each.call('PUBSUB', 'SHARDCHANNELS', 'lock:wake:{data}:*'));
    expect((await Promise.all(channels)).flat()).toHaveLength(1);
    await held.release();
    await waiting;
    expect(await redis.get('{data}:n')).toBe('1');
  });

  it('is reached through a client of the application, which stays as it is', async () => {
    const client = new Cluster(cluster.nodes, { keyPrefix: 'app:', lazyConnect: true });
    const locks = await startLocks({ connection: client });
    await locks.withLock('borrowed', { wait: 1_000 }, ({ multi, key }) => multi.incr(key('n')));
    expect(await redis.get('app:{borrowed}:n')).toBe('1');
    await applications.close();
    expect(await client.get('{borrowed}:n')).toBe('1');
    client.disconnect();
  });
});
