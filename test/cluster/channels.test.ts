import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Cluster } from 'ioredis';
import type { Lock } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startRedisCluster } from '../support/redis/redis-cluster.js';
import type { ClusterNode, RedisCluster } from '../support/redis/redis-cluster.js';
import { Applications, slotOf } from './support.js';

/** ms in which a waiter that is told has its lock; a grant that nobody hears of lasts longer. */
const TOLD = 1_400;

describe('who waits in a Redis Cluster', () => {
  let cluster: RedisCluster;
  let redis: Cluster;
  const applications = new Applications();
  const { prefix } = applications;
  const clients: Cluster[] = [];
  let stopped: ClusterNode | undefined;

  beforeAll(async () => {
    cluster = await startRedisCluster();
    redis = new Cluster(cluster.nodes);
  });
  afterEach(async () => {
    await applications.close();
    for (const client of clients.splice(0)) client.disconnect();
  });
  afterAll(async () => {
    redis?.disconnect();
    await cluster?.stop();
  });

  const start = (options: object = {}) =>
    applications.start({ connection: { nodes: cluster.nodes }, ttl: 60_000, ...options });
  const borrowed = (options: object = {}) => {
    const client = new Cluster(cluster.nodes, options);
    client.on('error', () => undefined); // a node is stopped on purpose
    clients.push(client);
    return client;
  };
  const nodes = () => [...cluster.masters, ...cluster.replicas].filter((node) => node !== stopped);
  const channels = async (pattern: string) => {
    const of = ({ admin }: ClusterNode) =>
      admin.call('PUBSUB', 'SHARDCHANNELS', pattern) as Promise<string[]>;
    return (await Promise.all(nodes().map(of))).flat();
  };
  const masterOf = async (tag: string): Promise<ClusterNode> => {
    for (const node of nodes()) {
      const [role] = await node.admin.role();
      if (role !== 'master') continue;
      const got = await node.admin.call('GET', `{${tag}}:n`).catch((error: Error) => error);
      if (!(got instanceof Error)) return node;
    }
    throw new Error('No master has it');
  };
  const inLine = (queue: string) => eventually(async () => (await redis.zcard(queue)) === 1);
  const expectTold = async (held: Lock, waiting: Promise<Lock>) => {
    const released = performance.now();
    await held.release();
    const mine = await waiting;
    expect(performance.now() - released).toBeLessThan(TOLD);
    await mine.release();
  };

  it('is told through a client with a prefix', async () => {
    const connect = () => start({ connection: borrowed({ keyPrefix: 'app:' }) });
    const [one, other] = [await connect(), await connect()];
    const held = await one.acquire('prefixed');
    const waiting = other.acquire('prefixed', { wait: 30_000 });
    await inLine(`app:${prefix}:queue:{prefixed}`);
    await expectTold(held, waiting);
  });

  it('is told although others of the same slot wait no more, for longer than a channel lingers', async () => {
    const [one, other] = [await start(), await start()];
    const [a, b] = [await one.acquire('a', { slot: 's' }), await one.acquire('b', { slot: 's' })];
    const [first, second] = ['a', 'b'].map((resource) =>
      other.acquire(resource, { slot: 's', wait: 60_000 }),
    );
    await inLine(`${prefix}:queue:{s}:a`);
    await inLine(`${prefix}:queue:{s}:b`);
    await expectTold(a, first as Promise<Lock>);
    const since = performance.now();
    await elapse(10_500, since);
    expect(await channels(`${prefix}:wake:{s}:*`)).toHaveLength(1);
    await expectTold(b, second as Promise<Lock>);
    await eventually(async () => (await channels(`${prefix}:wake:{s}:*`)).length === 0, 12_000);
  });

  it('is told where its slot was before, when that has moved away and back', async () => {
    const [one, other] = [await start(), await start()];
    const held = await one.acquire('to and fro');
    const waiting = other.acquire('to and fro', { wait: 60_000 });
    await inLine(`${prefix}:queue:{to and fro}`);
    const from = await masterOf('to and fro');
    const to = cluster.masters.find((node) => node !== from) as ClusterNode;
    await cluster.moveSlot(slotOf('to and fro'), from, to);
    await cluster.moveSlot(slotOf('to and fro'), to, from);
    await eventually(async () => (await channels(`${prefix}:wake:{to and fro}:*`)).length === 1);
    await expectTold(held, waiting);
  });

  it('is told where its slot has gone, also when who was asked for that did not know yet', async () => {
    const client = borrowed();
    const [one, other] = [await start(), await start({ connection: client })];
    const held = await one.acquire('news');
    const waiting = other.acquire('news', { wait: 60_000 });
    await inLine(`${prefix}:queue:{news}`);
    const look = client.refreshSlotsCache.bind(client);
    let looks = 0;
    client.refreshSlotsCache = (callback) => {
      looks += 1;
      if (looks > 1) look(callback);
      else callback?.(); // nothing new
    };
    const from = await masterOf('news');
    const to = cluster.masters.find((node) => node !== from) as ClusterNode;
    await cluster.moveSlot(slotOf('news'), from, to);
    await eventually(async () => (await channels(`${prefix}:wake:{news}:*`)).length === 1);
    await expectTold(held, waiting);
  });

  it('is told by a new master that its client has learnt of by itself', async () => {
    const client = borrowed();
    const [one, other] = [await start(), await start({ connection: client })];
    const held = await one.acquire('failover');
    const waiting = other.acquire('failover', { wait: 60_000 });
    await inLine(`${prefix}:queue:{failover}`);
    const before = await masterOf('failover');
    stopped = before;
    await before.server.stop();
    // Commands of users are redirected, and locks of the same slot are asked for there.
    await eventually(async () => {
      client.get('{failover}:n').catch(() => undefined);
      other.tryAcquire('noise', { slot: 'failover' }).then(
        (lock) => lock?.release(),
        () => undefined,
      );
      return (await masterOf('failover').catch(() => before)) !== before;
    }, 12_000);
    await eventually(async () => (await channels(`${prefix}:wake:{failover}:*`)).length === 1);
    await expectTold(held, waiting);
  });
});
