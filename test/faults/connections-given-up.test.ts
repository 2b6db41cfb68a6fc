import { once } from 'node:events';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { startCountingProxy } from '../support/counting-proxy.js';
import type { CountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { rulesOfReadme } from '../support/rules-of-readme.js';
import { privateRedis } from '../support/redis/test-redis.js';

describe('requests that are stuck in the network until their connection was given up', () => {
  let server: ProvidedRedis;
  let admin: Redis;
  let proxy: CountingProxy;
  const applications: LockApplication[] = [];
  beforeEach(async () => {
    server = await privateRedis();
    admin = new Redis(server.url);
    proxy = await startCountingProxy(server.url);
  });
  afterEach(async () => {
    for (const { redis, app } of applications.splice(0)) {
      await app.close();
      redis.disconnect();
    }
    await proxy.close();
    admin.disconnect();
    await server.stop();
  });

  const start = async (user = '') => {
    const { port } = new URL(proxy.url);
    const connection = `redis://${user}127.0.0.1:${port}`;
    const one = await startLocks({ url: server.url, connection, commandTimeout: 200 });
    applications.push(one);
    return one;
  };

  /** A try for `free` that is stuck and fails. */
  async function stuck({ locks, prefix }: LockApplication): Promise<void> {
    await (await locks.acquire('warm')).release();
    proxy.holdRequestsWith('{free}');
    const tried = locks.tryAcquire('free', { ttl: 60_000 }).catch((error: unknown) => error);
    await eventually(() => proxy.heldRequests() > 0);
    proxy.holdRequestsWith('no other request');
    expect(await tried).toMatchObject({ code: 'LOCK_UNAVAILABLE' });
    await eventually(() =>
      locks.acquire('works again').then(
        (lock) => lock.release().then(() => true),
        () => false,
      ),
    );
    expect(await admin.exists(`${prefix}:{free}`)).toBe(0); // it is not sent again for a caller that has given up
  }
  /** What they were to write would be there by then. */
  const arrived = async () => {
    proxy.passRequests();
    for (let i = 0; i < 50; i += 1) await admin.ping();
  };

  it('never arrive: they leave no lock behind, for Redis has ended the connection', async () => {
    const one = await start();
    await stuck(one);
    await arrived();
    expect(await admin.exists(`${one.prefix}:{free}`)).toBe(0);
  });

  it('never arrive where the user has the rights of the README with those that it calls optional', async () => {
    await admin.acl('SETUSER', 'locks', 'on', '>secret', ...rulesOfReadme(), '~*', '&*');
    await admin.acl('SETUSER', 'locks', '+client|info', '+client|kill');
    const one = await start('locks:secret@');
    await stuck(one);
    await arrived();
    expect(await admin.exists(`${one.prefix}:{free}`)).toBe(0);
  });

  it('may arrive where the user may not end connections, and locks work all the same', async () => {
    await admin.acl('SETUSER', 'locks', 'on', '>secret', ...rulesOfReadme(), '~*', '&*');
    const one = await start('locks:secret@');
    await stuck(one);
    await arrived();
    const lock = await one.locks.acquire('other');
    expect(await admin.get(`${one.prefix}:{other}`)).toBe(lock.token);
    await lock.release();
  });

  it('are not taken for those of somebody else who has the same number on another server', async () => {
    const other = await privateRedis();
    const stranger = new Redis(other.url, { lazyConnect: true, retryStrategy: null });
    const front = await startFaultProxy(server.url);
    const one = await startLocks({ url: server.url, connection: front.url, commandTimeout: 200 });
    await (await one.locks.acquire('warm')).release();
    const scripts = String(await admin.client('LIST'))
      .split('\n')
      .find((line) => / cmd=eval(sha)? /.test(line));
    const id = Number(/^id=(\d+)/.exec(scripts ?? '')?.[1]);
    // Somebody else's connection gets the number that the one for scripts has here.
    await stranger.connect();
    while ((await stranger.client('ID')) < id) {
      const ended = once(stranger, 'end');
      stranger.disconnect();
      await ended;
      await stranger.connect();
    }
    expect(await stranger.client('ID')).toBe(id);
    front.leadTo(other.url);
    front.cut();
    await eventually(() =>
      one.locks.acquire('moved').then(
        (lock) => lock.release().then(() => true),
        () => false,
      ),
    );
    expect(await stranger.ping()).toBe('PONG');
    await one.app.close();
    one.redis.disconnect();
    stranger.disconnect();
    await front.close();
    await other.stop();
  });
});
