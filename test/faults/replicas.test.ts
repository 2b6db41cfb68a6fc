import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockUnavailableError } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';

describe('locks that a replica has to confirm', () => {
  let primary: ProvidedRedis;
  let replica: ProvidedRedis;
  let replicaClient: Redis;
  let one: LockApplication;

  beforeAll(async () => {
    [primary, replica] = await Promise.all([
      privateRedis(['--repl-diskless-sync-delay', '0']),
      privateRedis(),
    ]);
    replicaClient = new Redis(replica.url);
    await replicaClient.replicaof('127.0.0.1', Number(new URL(primary.url).port));
    await eventually(async () => (await replicaClient.info('replication')).includes('master_link_status:up'));
    one = await startLocks({ url: primary.url, replicas: 1, commandTimeout: 600 });
    await eventually(async () => {
      await one.redis.set(one.key('replicated'), 1);
      return (await one.redis.wait(1, 100)) === 1;
    });
  });
  afterAll(async () => {
    await one.close();
    replicaClient.disconnect();
    await Promise.all([primary.stop(), replica.stop()]);
  });

  it('are there when they are granted, and so when they are waited for or handed over', async () => {
    const ownerKey = `${one.prefix}:{confirmed}`;
    const first = await one.locks.acquire('confirmed');
    expect(await replicaClient.get(ownerKey)).toBe(first.token);
    const waiter = one.locks.acquire('confirmed', { wait: 5_000 });
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{confirmed}`)) === 1);
    await first.release();
    const second = await waiter;
    expect(await replicaClient.get(ownerKey)).toBe(second.token);
    await second.release();
    const both = await one.locks.acquire(['confirmed', 'also']);
    expect(await replicaClient.get(ownerKey)).toBe(both.token);
    await both.release();
    await one.locks.withLock('confirmed', ({ multi }) => multi.set(one.key('confirmed'), 1));
    expect(await one.redis.get(one.key('confirmed'))).toBe('1');
  });

  it('are not to be had while the replica does not answer, nor left behind; renewals go on', async () => {
    const held = await one.locks.acquire('kept', { ttl: 600 });
    const { pid } = replica as { pid: number };
    process.kill(pid, 'SIGSTOP');
    try {
      const refused = await Promise.allSettled([
        one.locks.acquire('unconfirmed'),
        one.locks.acquire('unconfirmed:waiting', { wait: 5_000 }),
      ]);
      for (const outcome of refused) {
        expect(outcome).toMatchObject({ status: 'rejected', reason: expect.any(LockUnavailableError) });
      }
      const { reason } = refused[0] as PromiseRejectedResult;
      expect((reason as Error).message).toContain('0 of 1 replicas');
      const names = ['unconfirmed', 'unconfirmed:waiting'].map((name) => `${one.prefix}:{${name}}`);
      await eventually(async () => (await one.redis.exists(...names)) === 0, 2_000);
      const since = performance.now();
      await elapse(700, since); // longer than its ttl
      expect(held.held).toBe(true);
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await held.release();
    await eventually(async () => (await one.redis.wait(1, 500)) === 1);
    await (await one.locks.acquire('unconfirmed')).release();
  });

  it('do not count as confirmed by the replica of another primary, which never heard of them', async () => {
    const next = await privateRedis(['--repl-diskless-sync-delay', '0']);
    const nextReplica = await privateRedis();
    const [nextClient, follower] = [new Redis(next.url), new Redis(nextReplica.url)];
    const proxy = await startFaultProxy(primary.url);
    try {
      await follower.replicaof('127.0.0.1', Number(new URL(next.url).port));
      await eventually(async () => {
        await nextClient.set('mark', 1);
        return (await nextClient.wait(1, 100)) === 1;
      });
      const moved = await startLocks({
        url: next.url,
        connection: proxy.url,
        replicas: 1,
        keyPrefix: 'moved',
      });
      const { pid } = replica as { pid: number };
      process.kill(pid, 'SIGSTOP'); // so that WAIT has no answer
      try {
        const taken = moved.locks.acquire('moved');
        await eventually(async () => (await one.redis.exists('moved:{moved}')) === 1);
        proxy.leadTo(next.url);
        proxy.cut();
        await expect(taken).rejects.toBeInstanceOf(LockUnavailableError);
        // Asked for again there, it may have been granted, and is given back.
        await eventually(async () => (await nextClient.exists('moved:{moved}')) === 0);
      } finally {
        process.kill(pid, 'SIGCONT');
      }
      await one.redis.del('moved:{moved}', 'moved:fence:{moved}');
      await moved.close();
    } finally {
      await proxy.close();
      nextClient.disconnect();
      follower.disconnect();
      await Promise.all([next.stop(), nextReplica.stop()]);
    }
  });
});
