import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { eventually } from '../eventually.js';
import { thisMachine } from './machine.js';
import type { ProvidedRedis } from './provide-redis.js';
import { privateRedis } from './test-redis.js';

const SLOTS = 16_384;
const MASTERS = 3;

export interface ClusterNode {
  readonly server: ProvidedRedis;
  readonly port: number;
  /** For the cluster's own messages. */
  readonly busPort: number;
  readonly id: string;
  /** Talks to this node alone. */
  readonly admin: Redis;
}

/** A Redis Cluster of three masters with a replica each, as processes that end with this one. */
export interface RedisCluster {
  readonly masters: readonly ClusterNode[];
  readonly replicas: readonly ClusterNode[];
  /** Where clients can begin to ask. */
  readonly nodes: { host: string; port: number }[];
  /** With its keys, as an operator does it. */
  moveSlot(slot: number, from: ClusterNode, to: ClusterNode): Promise<void>;
  stop(): Promise<void>;
}

function slotsOf(master: number): number[] {
  const [from, to] = [master, master + 1].map((n) => Math.floor((n * SLOTS) / MASTERS)) as [number, number];
  return Array.from({ length: to - from }, (_, i) => from + i);
}

async function moveSlot(
  masters: readonly ClusterNode[],
  slot: number,
  from: ClusterNode,
  to: ClusterNode,
): Promise<void> {
  await to.admin.call('CLUSTER', 'SETSLOT', slot, 'IMPORTING', from.id);
  await from.admin.call('CLUSTER', 'SETSLOT', slot, 'MIGRATING', to.id);
  for (;;) {
    const keys = (await from.admin.call('CLUSTER', 'GETKEYSINSLOT', slot, 2)) as string[];
    if (keys.length === 0) break;
    await from.admin.call('MIGRATE', '127.0.0.1', to.port, '', 0, 2_000, 'KEYS', ...keys);
  }
  for (const node of [to, from, ...masters]) {
    await node.admin.call('CLUSTER', 'SETSLOT', slot, 'NODE', to.id);
  }
}

/** @throws when a server cannot be started: the tests that need one then fail */
export async function startRedisCluster(): Promise<RedisCluster> {
  const folders: string[] = [];
  const all: ClusterNode[] = [];
  const stop = async () => {
    for (const { admin } of all) admin.disconnect();
    await Promise.all(all.map(({ server }) => server.stop()));
    await Promise.all(folders.map((folder) => rm(folder, { recursive: true, force: true })));
  };
  try {
    for (let i = 0; i < 2 * MASTERS; i += 1) {
      const folder = await mkdtemp(join(tmpdir(), 'cluster-node-'));
      folders.push(folder);
      all.push(await startNode(folder));
    }
    const [masters, replicas] = [all.slice(0, MASTERS), all.slice(MASTERS)];
    await Promise.all(
      masters.map(
        ({ admin }, i) => admin.cluster('ADDSLOTS', ...slotsOf(i)), // Redis 6.2 takes no ranges
      ),
    );
    await Promise.all(masters.map(({ admin }, i) => admin.cluster('SET-CONFIG-EPOCH', i + 1)));
    for (const { port, busPort } of all.slice(1)) {
      await all[0]?.admin.call('CLUSTER', 'MEET', '127.0.0.1', port, busPort);
    }
    const knowsAll = async ({ admin }: ClusterNode) => {
      const nodes = String(await admin.cluster('NODES'));
      return nodes.trim().split('\n').length === all.length && !nodes.includes('handshake');
    };
    await eventually(async () => (await Promise.all(all.map(knowsAll))).every(Boolean), 20_000);
    for (const [i, { admin }] of replicas.entries()) {
      await admin.cluster('REPLICATE', masters[i]?.id ?? '');
    }
    const isReady = async ({ admin }: ClusterNode) =>
      String(await admin.cluster('INFO')).includes('cluster_state:ok');
    await eventually(async () => (await Promise.all(all.map(isReady))).every(Boolean), 20_000);
    const follows = async ({ admin }: ClusterNode) =>
      (await admin.info('replication')).includes('master_link_status:up');
    await eventually(async () => (await Promise.all(replicas.map(follows))).every(Boolean), 20_000);
    return {
      masters,
      replicas,
      nodes: masters.map(({ port }) => ({ host: '127.0.0.1', port })),
      moveSlot: (slot, from, to) => moveSlot(masters, slot, from, to),
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function startNode(folder: string): Promise<ClusterNode> {
  // The port for the cluster's own messages is usually 10,000 above the other, which may be taken or too high.
  const busPort = await thisMachine().freePort();
  const settings = {
    'cluster-enabled': 'yes',
    'cluster-node-timeout': '1000',
    'cluster-port': String(busPort),
    'cluster-replica-validity-factor': '0',
    'repl-diskless-sync-delay': '0',
    dir: folder,
  };
  const server = await privateRedis(
    Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]),
  );
  const admin = new Redis(server.url, { disconnectTimeout: 0 });
  admin.on('error', () => undefined); // of nodes that a test has killed
  return {
    server,
    admin,
    port: Number(new URL(server.url).port),
    busPort,
    id: String(await admin.cluster('MYID')),
  };
}
