import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Cluster } from 'ioredis';
import { LockError } from '../../lib/index.js';
import type { LockService } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startRedisCluster } from '../support/redis/redis-cluster.js';
import type { ClusterNode, RedisCluster } from '../support/redis/redis-cluster.js';
import { Applications, slotOf } from './support.js';

const COMMITS = 2_500;
const WORKERS = 8;

describe('a Redis Cluster that changes under load', () => {
  let cluster: RedisCluster;
  let redis: Cluster;
  let locks: LockService[];
  const applications = new Applications();

  beforeAll(async () => {
    cluster = await startRedisCluster();
    redis = new Cluster(cluster.nodes);
    const options = { connection: { nodes: cluster.nodes }, commandTimeout: 1_500 };
    locks = [await applications.start(options), await applications.start(options)];
  });
  afterAll(async () => {
    await applications.close();
    redis?.disconnect();
    await cluster?.stop();
  });

  const masterOf = async (resource: string): Promise<ClusterNode> => {
    const all = [...cluster.masters, ...cluster.replicas];
    for (const node of all) {
      const role = await node.admin.role().catch(() => []);
      if (role[0] !== 'master') continue;
      const moved = await node.admin.call('GET', `{${resource}}:n`).catch((error: Error) => error);
      if (!(moved instanceof Error && moved.message.startsWith('MOVED'))) return node;
    }
    throw new Error('No master has it');
  };

  /** Commits under locks on a few resources of one slot, until there were enough of them and the change is over. */
  async function commitWhile(tag: string, change: () => Promise<void>) {
    let isOver = false;
    const changed = change().finally(() => (isOver = true));
    changed.catch(() => undefined); // heard of below
    const committed: string[] = [];
    const refused: { id: string; code: string }[] = [];
    let number = 0;
    const work = async (worker: number) => {
      while (number < COMMITS || !isOver) {
        const id = `${(number += 1)}`;
        const service = locks[worker % locks.length] as LockService;
        try {
          await service.withLock(
            `${tag}:${worker % 3}`,
            { slot: tag, wait: 10_000, retries: 10 },
            ({ multi, key }) => multi.incr(key('n')).hincrby(key('done'), id, 1),
          );
          committed.push(id);
        } catch (error) {
          if (!(error instanceof LockError)) throw error;
          refused.push({ id, code: error.code });
        }
      }
    };
    await Promise.all(Array.from({ length: WORKERS }, (_, worker) => work(worker)));
    await changed;
    return { committed, refused };
  }

  /** What was reported is there, once; what was refused is not. */
  async function assertTrue(tag: string, outcome: Awaited<ReturnType<typeof commitWhile>>) {
    const { committed, refused } = outcome;
    const done = await redis.hgetall(`{${tag}}:done`);
    expect(Object.values(done).filter((times) => times !== '1')).toEqual([]);
    expect(committed.filter((id) => done[id] === undefined)).toEqual([]);
    const wrong = refused.filter(({ id, code }) => code !== 'LOCK_OUTCOME_UNKNOWN' && done[id] !== undefined);
    expect(wrong).toEqual([]);
    expect(Number(await redis.get(`{${tag}}:n`))).toBe(Object.keys(done).length);
    expect(committed.length).toBeGreaterThan(COMMITS / 2);
  }

  it('loses no commit, and applies none that was refused, while a slot moves to and fro', async () => {
    const [tag, slot] = ['moving', slotOf('moving')];
    const move = async () => {
      for (let moves = 0; moves < 6; moves += 1) {
        const from = await masterOf(tag);
        const to = cluster.masters.find((node) => node !== from) as ClusterNode;
        await cluster.moveSlot(slot, from, to);
        const since = performance.now();
        await elapse(300, since); // some commits where it is now
      }
    };
    await assertTrue(tag, await commitWhile(tag, move));
  });

  it('loses no commit, and applies none that was refused, while replicas take over', async () => {
    const tag = 'failing over';
    const failOver = async () => {
      for (let takeovers = 0; takeovers < 2; takeovers += 1) {
        if (takeovers > 0) {
          // Redis counts votes of the takeover before as its own when it is asked again within 4 s.
          const since = performance.now();
          await elapse(4_500, since);
        }
        const before = await masterOf(tag);
        const replicas = await Promise.all(
          [...cluster.masters, ...cluster.replicas].map(async (node) => {
            const [role, , port] = (await node.admin.role()) as [string, string, number];
            return role === 'slave' && port === before.port ? node : undefined;
          }),
        );
        const next = replicas.find((node) => node !== undefined) as ClusterNode;
        await next.admin.call('CLUSTER', 'FAILOVER'); // waits until it has everything
        await eventually(async () => (await next.admin.role())[0] === 'master', 10_000);
        // Only then it can be asked to take over again.
        await eventually(async () => {
          const nodes = String(await next.admin.cluster('NODES')).split('\n');
          const info = await before.admin.info('replication');
          const follows = nodes.some(
            (line) => line.startsWith(before.id) && line.includes(`slave ${next.id}`),
          );
          return follows && info.includes('master_link_status:up');
        }, 10_000);
      }
    };
    await assertTrue(tag, await commitWhile(tag, failOver));
  });

  it('tells a silent waiter on the server where its slot has gone, and on no other', async () => {
    const [tag, resource] = ['told', 'told:1'];
    const [one, other] = locks as [LockService, LockService];
    const held = await one.acquire(resource, { slot: tag, ttl: 60_000 });
    const waiting = other.acquire(resource, { slot: tag, wait: 30_000, ttl: 60_000 });
    const queue = `${applications.prefix}:queue:{${tag}}:${resource}`;
    await eventually(async () => (await redis.zcard(queue)) === 1);
    const from = await masterOf(tag);
    const to = cluster.masters.find((node) => node !== from) as ClusterNode;
    const channels = async (node: ClusterNode) =>
      (await node.admin.call(
        'PUBSUB',
        'SHARDCHANNELS',
        `${applications.prefix}:wake:{${tag}}:*`,
      )) as string[];
    expect([(await channels(from)).length, (await channels(to)).length]).toEqual([1, 0]);
    await cluster.moveSlot(slotOf(tag), from, to);
    await eventually(async () => (await channels(to)).length === 1);
    expect(await channels(from)).toEqual([]);
    const released = performance.now();
    await held.release();
    const mine = await waiting;
    expect(performance.now() - released).toBeLessThan(1_400); // less than a grant that nobody hears of
    expect(await redis.zcard(queue)).toBe(0);
    await mine.release();
  });

  it('serves those who wait again when a master was killed and its replica has taken over', async () => {
    const resource = 'killed';
    const [one, other] = locks as [LockService, LockService];
    await (await one.acquire(resource)).release();
    const master = await masterOf(resource);
    const held = await one.acquire(resource, { ttl: 2_000, autoExtend: false });
    const waiting = other.withLock(resource, { wait: 30_000 }, ({ multi, key }) => multi.incr(key('n')));
    await eventually(async () => (await redis.zcard(`${applications.prefix}:queue:{${resource}}`)) === 1);
    await master.server.stop();
    await waiting;
    expect(await redis.get(`{${resource}}:n`)).toBe('1');
    await expect(held.extend()).rejects.toMatchObject({ code: 'LOCK_LOST' });
    // Elsewhere as well.
    await one.withLock(resource, { wait: 5_000 }, ({ multi, key }) => multi.incr(key('n')));
    expect(await redis.get(`{${resource}}:n`)).toBe('2');
  });
});
