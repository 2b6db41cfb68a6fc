import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import type { LockService } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';
import { Applications } from './support.js';

const NAME = 'locks';

describe('Redis Sentinel', () => {
  const servers: ProvidedRedis[] = [];
  const clients: Redis[] = [];
  const applications = new Applications();
  let folder: string;
  let sentinels: { host: string; port: number }[];
  let one: LockService;
  let other: LockService;
  let redis: Redis;

  const portOf = ({ url }: ProvidedRedis) => Number(new URL(url).port);
  const start = async (args: readonly string[], configFile?: string) => {
    const server = await privateRedis(args, configFile);
    const client = new Redis(server.url, { disconnectTimeout: 0 });
    client.on('error', () => undefined); // of servers that a test has killed
    servers.push(server);
    clients.push(client);
    return { server, client };
  };

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sentinel-'));
    const primary = await start(['--repl-diskless-sync-delay', '0']);
    const replica = await start([]);
    await replica.client.replicaof('127.0.0.1', portOf(primary.server));
    await eventually(async () =>
      (await replica.client.info('replication')).includes('master_link_status:up'),
    );
    const watchers = await Promise.all(
      [1, 2, 3].map(async (i) => {
        const config = join(folder, `${i}.conf`);
        await writeFile(
          config,
          `sentinel monitor ${NAME} 127.0.0.1 ${portOf(primary.server)} 2\n` +
            `sentinel down-after-milliseconds ${NAME} 500\nsentinel failover-timeout ${NAME} 3000\n`,
        );
        return start(['--sentinel'], config);
      }),
    );
    sentinels = watchers.map(({ server }) => ({ host: '127.0.0.1', port: portOf(server) }));
    // They know of each other and of the replica, without which there is no failover.
    await eventually(async () => {
      const known = await Promise.all(
        watchers.map(async ({ client }) => [
          ((await client.call('SENTINEL', 'SENTINELS', NAME)) as unknown[]).length,
          ((await client.call('SENTINEL', 'REPLICAS', NAME)) as unknown[]).length,
        ]),
      );
      return known.flat().join() === '2,1,2,1,2,1';
    }, 30_000);
    const options = { connection: { sentinels, name: NAME }, commandTimeout: 1_000 };
    [one, other] = [await applications.start(options), await applications.start(options)];
    redis = new Redis({ sentinels, name: NAME, disconnectTimeout: 0 });
    redis.on('error', () => undefined); // while there is no primary
  });
  afterAll(async () => {
    await applications.close();
    redis?.disconnect();
    for (const client of clients) client.disconnect();
    await Promise.all(servers.map((server) => server.stop()));
    await rm(folder, { recursive: true, force: true });
  });

  it('has locks that survive a failover which has their data, and waiters that are served after it', async () => {
    const held = await one.acquire('held', { ttl: 20_000 });
    const waiting = other.withLock('held', { wait: 40_000 }, ({ multi, key }) => multi.incr(key('n')));
    await eventually(async () => (await redis.zcard(`${applications.prefix}:queue:{held}`)) === 1);
    const [primary, replica] = clients as [Redis, Redis];
    await primary.set('mark', 1);
    expect(await primary.wait(1, 2_000)).toBe(1);
    await servers[0]?.stop();
    await eventually(async () => (await replica.role())[0] === 'master', 20_000);
    expect(await replica.get(`${applications.prefix}:{held}`)).toBe(held.token);
    await eventually(
      async () =>
        one
          .withLock('other', { wait: 1_000 }, ({ multi, key }) => multi.incr(key('n')))
          .then(
            () => true,
            () => false,
          ),
      20_000,
    );
    expect(held.held).toBe(true);
    expect(await replica.get('{held}:n')).toBeNull();
    await held.release();
    await waiting;
    expect(await replica.get('{held}:n')).toBe('1');
    expect(await replica.get('{other}:n')).toBe('1');
  });
});
