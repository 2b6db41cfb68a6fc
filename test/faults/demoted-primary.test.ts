import { afterEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockUnavailableError } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';

/** Replicas need not wait for others to arrive. */
const AT_ONCE = ['--repl-diskless-sync-delay', '0'];

describe('a primary that has become a replica and keeps its connections', () => {
  const endings: (() => Promise<unknown>)[] = [];
  afterEach(async () => {
    const failed: unknown[] = [];
    for (const end of endings.splice(0).reverse()) await end().catch((error: unknown) => failed.push(error));
    expect(failed).toEqual([]);
  });
  const owned = <T>(thing: T, end: (thing: T) => unknown): T => {
    endings.push(async () => end(thing));
    return thing;
  };
  const startServer = async () => owned(await privateRedis(AT_ONCE), (server) => server.stop());
  const portOf = ({ url }: ProvidedRedis) => Number(new URL(url).port);
  const clientOf = (server: ProvidedRedis) =>
    owned(new Redis(server.url, { disconnectTimeout: 0 }), (redis) => redis.disconnect());

  /** Two servers and one address, which leads to the primary: new connections, that is. */
  async function twoServers() {
    const [primary, replica] = [await startServer(), await startServer()];
    const [old, next] = [clientOf(primary), clientOf(replica)];
    const proxy = owned(await startFaultProxy(primary.url), (each) => each.close());
    await next.replicaof('127.0.0.1', portOf(primary));
    await eventually(async () => (await next.info('replication')).includes('master_link_status:up'));
    const applications = owned<LockApplication[]>([], (all) => closeAll(...all));
    const start = async (options: object = {}) => {
      const one = await startLocks({ url: replica.url, connection: proxy.url, ttl: 3_000, ...options });
      applications.push(one);
      return one;
    };
    const failOver = async () => {
      await old.set('mark', 1); // WAIT is about what its own connection wrote
      expect(await old.wait(1, 2_000)).toBe(1);
      await next.replicaof('NO', 'ONE');
      proxy.leadTo(replica.url);
      await old.replicaof('127.0.0.1', portOf(replica));
      await eventually(async () => (await old.info('replication')).includes('role:slave'));
    };
    return { old, next, proxy, start, failOver };
  }

  it('is left at the first call: none fails, what was held is held, and who waits is served where the lock is now', async () => {
    const { next, start, failOver } = await twoServers();
    const [one, other] = [await start(), await start({ keyPrefix: 'moved' })];
    const third = await start({ keyPrefix: 'moved' });
    const held = await third.locks.acquire('held');
    const order: string[] = [];
    const waiting = ['first', 'second'].map(async (name, i) => {
      await eventually(async () => (await next.zcard('moved:queue:{held}')) === i);
      await other.locks.withLock('held', { wait: 30_000 }, ({ multi }) => {
        order.push(name);
        multi.rpush(other.key('order'), name);
      });
    });
    await eventually(async () => (await next.zcard('moved:queue:{held}')) === 2);
    await one.locks.withLock('warm', ({ multi }) => multi.set(one.key('n'), 1));
    await failOver();
    await one.locks.withLock('next', ({ multi }) => multi.incr(one.key('n')));
    await (await one.locks.tryAcquire('bare'))?.release();
    await (await one.locks.acquire('waits', { wait: 500 })).release();
    // Renewed by its holder, and asked for by those who wait, both of whom hear of it there.
    await eventually(async () => ((await next.pubsub('CHANNELS', 'moved:wake:*')) as string[]).length === 1);
    await eventually(async () => (await next.pttl('moved:{held}')) > 2_500);
    expect([held.held, order]).toEqual([true, []]);
    await held.release();
    await Promise.all(waiting);
    expect(await next.get(one.key('n'))).toBe('2');
    expect(await next.lrange(other.key('order'), 0, -1)).toEqual(['first', 'second']);
  });

  it('passes on what its primary publishes, and nobody begins with a lock that went to somebody else', async () => {
    const { old, next, start, failOver } = await twoServers();
    const stays = await start({ keyPrefix: 'heard' });
    const moves = await start({ keyPrefix: 'heard' });
    const holder = await start({ keyPrefix: 'heard' });
    const held = await holder.locks.acquire('r');
    const first = stays.locks.acquire('r', { wait: 30_000 });
    let hasBegun = false;
    void first.then(() => (hasBegun = true));
    await eventually(async () => (await next.zcard('heard:queue:{r}')) === 1);
    await failOver();
    await (await moves.locks.acquire('other')).release(); // hears that it has to move
    const second = moves.locks.acquire('r', { wait: 30_000 });
    await eventually(async () => (await next.zcard('heard:queue:{r}')) === 2);
    await held.release(); // the first one listens at the replica still
    const mine = await second;
    await old.ping();
    await stays.locks.inspect('another'); // what was published before has been heard
    expect([mine.held, hasBegun, await next.get('heard:{r}')]).toEqual([true, false, mine.token]);
    await mine.release();
    await (await first).release();
  });

  it('is left as well where the options have a reconnectOnError of their own', async () => {
    const { next, proxy, start, failOver } = await twoServers();
    const { port } = new URL(proxy.url);
    for (const answer of [true, 2 as const]) {
      const connection = { host: '127.0.0.1', port: Number(port), reconnectOnError: () => answer };
      const one = await start({ connection });
      await one.locks.withLock('warm', ({ multi }) => multi.incr(one.key('n')));
      if (answer === true) await failOver();
      await one.locks.withLock('next', ({ multi }) => multi.incr(one.key('n')));
      expect(await next.get(one.key('n'))).toBe('2');
    }
  });

  it('is left by context.redis and watch() with the locks: what they read is what is committed', async () => {
    const { next, start, failOver } = await twoServers();
    const one = await start();
    const increment = () =>
      one.locks.withLock('counter', async ({ redis, watch, multi }) => {
        await watch(one.key('n'));
        multi.set(one.key('n'), Number(await redis.get(one.key('n'))) + 1);
      });
    await increment();
    await failOver();
    await (await one.locks.acquire('other')).release(); // hears of it
    for (let i = 0; i < 5; i += 1) await increment();
    expect(await next.get(one.key('n'))).toBe('6');
  });

  it('is waited out while its address still leads to it: the call succeeds when that leads to the new one', async () => {
    const { old, next, proxy, start } = await twoServers();
    const one = await start({ commandTimeout: 4_000 });
    await one.locks.withLock('warm', ({ multi }) => multi.set(one.key('n'), 1));
    await next.replicaof('NO', 'ONE');
    await old.replicaof('127.0.0.1', Number(new URL(proxy.url).port));
    await eventually(async () => (await old.info('replication')).includes('role:slave'));
    const acquired = one.locks.acquire('late');
    const connections = async () =>
      Number(/total_connections_received:(\d+)/.exec(await old.info('stats'))?.[1]);
    const before = await connections();
    await eventually(async () => (await connections()) > before); // it has tried
    proxy.leadTo(`redis://127.0.0.1:${one.redis.options.port}`);
    const lock = await acquired;
    expect(await next.get(`${one.prefix}:{late}`)).toBe(lock.token);
    await lock.release();
  });

  it('that nothing replaces refuses calls with its own word, and is not stormed', async () => {
    const server = await startServer();
    const admin = clientOf(server);
    const one = owned(await startLocks({ url: server.url, commandTimeout: 200 }), async ({ app, redis }) => {
      await app.close();
      redis.disconnect();
    });
    await admin.replicaof('127.0.0.1', 1);
    const connections = async () =>
      Number(/total_connections_received:(\d+)/.exec(await admin.info('stats'))?.[1]);
    const before = await connections();
    for (let i = 0; i < 5; i += 1) {
      const refused = await one.locks.acquire('refused').catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(LockUnavailableError);
      expect((refused as Error).cause).toMatchObject({ message: expect.stringMatching(/^READONLY/) });
    }
    // In 1,000 ms: at once, after 50 ms, 100 ms, and then every 200 ms. Without these pauses, it would be 18.
    expect((await connections()) - before).toBeLessThan(13);
  });
});
