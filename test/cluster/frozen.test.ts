import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { eventually } from '../support/eventually.js';
import { startRedisCluster } from '../support/redis/redis-cluster.js';
import type { RedisCluster } from '../support/redis/redis-cluster.js';
import { Applications, slotOf } from './support.js';

describe('a Redis Cluster of which a master is frozen', () => {
  let cluster: RedisCluster;
  let frozen: number;
  const applications = new Applications();

  beforeAll(async () => {
    cluster = await startRedisCluster();
    frozen = cluster.masters[0]?.server.pid as number;
    // Otherwise all of them refuse everything while a master is missing.
    for (const { admin } of [...cluster.masters, ...cluster.replicas]) {
      await admin.config('SET', 'cluster-require-full-coverage', 'no');
    }
  });
  afterAll(async () => {
    process.kill(frozen, 'SIGCONT');
    await applications.close();
    await cluster?.stop();
  });

  /** A resource of the first master, which will be frozen, or of another. */
  const resourceOn = (master: number, name: string) => {
    const names = Array.from({ length: 100 }, (_, i) => `${name}:${i}`);
    return names.find((each) => Math.floor((3 * slotOf(each)) / 16_384) === master) ?? '';
  };

  it('loses no lease of another, and its replica serves those who waited, soon after the lease has ended', async () => {
    const options = { connection: { nodes: cluster.nodes }, commandTimeout: 1_000 };
    const [one, other] = [await applications.start(options), await applications.start(options)];
    const elsewhere = await one.acquire(resourceOn(1, 'elsewhere'), { ttl: 900 });
    const also = await one.acquire(resourceOn(0, 'also'), { ttl: 6_000 }); // its renewals go unanswered
    const resource = resourceOn(0, 'frozen');
    await one.acquire(resource, { ttl: 4_000, autoExtend: false });
    const held = performance.now();
    const waiting = other.acquire(resource, { wait: 40_000 });
    const queue = `${applications.prefix}:queue:{${resource}}`;
    await eventually(async () => (await cluster.masters[0]?.admin.zcard(queue)) === 1);
    const replica = cluster.replicas[0]?.admin;
    await eventually(async () => Number(await replica?.exists(queue).catch(() => 1)) === 1);
    process.kill(frozen, 'SIGSTOP');
    await eventually(async () => (await replica?.role())?.[0] === 'master', 20_000);
    const lock = await waiting;
    expect(performance.now() - held).toBeLessThan(9_000);
    expect(await replica?.get(`${applications.prefix}:{${resource}}`)).toBe(lock.token);
    expect(elsewhere.held).toBe(true); // over 4 s, with a ttl of 900 ms
    await Promise.all([lock.release(), elsewhere.release(), also.release()]);
  });
});
