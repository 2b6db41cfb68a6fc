import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { LockUnavailableError } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startRedisCluster } from '../support/redis/redis-cluster.js';
import type { RedisCluster } from '../support/redis/redis-cluster.js';
import { Applications } from './support.js';

describe('a Redis Cluster whose passwords change', () => {
  let cluster: RedisCluster;
  const applications = new Applications();
  beforeAll(async () => {
    cluster = await startRedisCluster();
  });
  afterAll(async () => {
    await applications.close();
    await cluster?.stop();
  });

  const everywhere = (...args: string[]) =>
    Promise.all([...cluster.masters, ...cluster.replicas].map(({ admin }) => admin.call(...(args as ['']))));

  it('is connected to with what the function answers then, on every node', async () => {
    await everywhere('ACL', 'SETUSER', 'app', 'on', '>old', '~*', '&*', '+@all');
    await everywhere('ACL', 'SETUSER', 'default', 'off');
    let password = 'old';
    const locks = await applications.start({
      connection: { nodes: cluster.nodes },
      credentials: async () => ({ username: 'app', password }),
    });
    const names = ['a', 'b', 'c', 'd', 'e', 'f'];
    const work = () =>
      Promise.all(
        names.map((name) =>
          locks.withLock(name, { wait: 2_000 }, async ({ multi, redis, watch, key }) => {
            await watch(key('n'));
            multi.set(key('n'), Number(await redis.get(key('n'))) + 1);
          }),
        ),
      );
    await work();
    await everywhere('ACL', 'SETUSER', 'app', 'resetpass', '>new');
    password = 'new';
    await everywhere('CLIENT', 'KILL', 'USER', 'app');
    await eventually(
      () =>
        work().then(
          () => true,
          () => false,
        ),
      20_000,
    );
    const read = await locks.withLock('a', ({ redis, key }) => redis.get(key('n')));
    expect(Number(read)).toBeGreaterThanOrEqual(2);
  });

  it('refuses who cannot say one, with the reason', async () => {
    const locks = await applications.start({
      connection: { nodes: cluster.nodes },
      commandTimeout: 500,
      credentials: () => Promise.reject(new Error('no token today')),
    });
    const refused = await locks.acquire('x').catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(LockUnavailableError);
    expect(refused).toMatchObject({ cause: { message: expect.stringMatching(/^no token today$/) } });
  });
});
