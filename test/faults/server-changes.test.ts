import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockOutcomeUnknownError } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startFaultProxy } from '../support/fault-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis, privateRedisAt } from '../support/redis/test-redis.js';

const BUSY_FOR_200_MS = `
  local start, now = redis.call('TIME')
  repeat now = redis.call('TIME') until (now[1] - start[1]) * 1000000 + now[2] - start[2] > 200000
`;

const isBusy = (admin: Redis) =>
  admin.ping().then(
    () => false,
    (error: Error) => error.message.startsWith('BUSY'),
  );

/** Replicas need not wait for others to arrive. */
const AT_ONCE = ['--repl-diskless-sync-delay', '0'];

describe('a server that changes between the work and its commit', () => {
  const endings: (() => Promise<unknown>)[] = [];
  afterEach(async () => {
    for (const end of endings.splice(0).reverse()) await end();
  });
  /** Ends it after the test, the last one first. */
  const owned = <T>(thing: T, end: (thing: T) => unknown): T => {
    endings.push(async () => end(thing));
    return thing;
  };
  const startServer = async (args: readonly string[] = []) =>
    owned(await privateRedis(args), (server) => server.stop());
  const client = (server: ProvidedRedis) =>
    owned(new Redis(server.url, { disconnectTimeout: 0 }), (redis) => redis.disconnect());
  const start = async (...options: Parameters<typeof startLocks>) =>
    owned(await startLocks(...options), (application) => application.close());

  /** One transaction that meets a change of the server, after one that has opened every connection. */
  async function commitAcross(one: LockApplication, change: () => Promise<unknown>, options = {}) {
    await one.locks.withLock('warm-up', ({ multi }) => multi.set(one.key('warm-up'), 1));
    let runs = 0;
    const outcome = await one.locks
      .withLock('order', options, async ({ multi }) => {
        runs += 1;
        multi.incr(one.key('order'));
        if (runs === 1) await change();
      })
      .then(
        () => 'committed',
        (error: unknown) => error,
      );
    return { outcome, runs };
  }

  it('case 18c: and is stopped meanwhile: the call waits for it, and says what was applied', async () => {
    const server = await startServer();
    const one = await start({ url: server.url, commandTimeout: 200, ttl: 5_000 });
    const { pid } = server as { pid: number };
    let stopped = 0;
    const { outcome, runs } = await commitAcross(one, async () => {
      process.kill(pid, 'SIGSTOP');
      stopped = performance.now();
      const resume = async () => {
        await elapse(500, stopped);
        process.kill(pid, 'SIGCONT');
      };
      void resume();
    });
    expect(performance.now() - stopped).toBeGreaterThan(500);
    expect([outcome, runs, await one.redis.get(one.key('order'))]).toEqual(['committed', 1, '1']);
  });

  it('case 18c: and goes on only after the verdict, applies nothing any more', async () => {
    const server = await startServer();
    const one = await start({ url: server.url, commandTimeout: 100, ttl: 600 });
    const { pid } = server as { pid: number };
    try {
      const { outcome } = await commitAcross(one, async () => process.kill(pid, 'SIGSTOP'), { retries: 0 });
      expect(outcome).toBeInstanceOf(LockOutcomeUnknownError);
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await one.redis.ping();
    expect(await one.redis.get(one.key('order'))).toBeNull();
    // Once there is a connection again: those made meanwhile were given up in turn.
    const next = () => one.locks.withLock('order', () => 'next').catch(() => 'not yet');
    await eventually(async () => (await next()) === 'next');
    expect(await one.redis.get(one.key('order'))).toBeNull();
  });

  it('to one that is busy with a script, is waited for while the lock is held', async () => {
    const server = await startServer();
    const one = await start({ url: server.url, commandTimeout: 2_000, ttl: 5_000 });
    const [admin, slow] = [client(server), client(server)];
    await admin.config('SET', 'lua-time-limit', '20');
    let busy: Promise<unknown> = Promise.resolve();
    const { outcome, runs } = await commitAcross(one, async () => {
      busy = slow.eval('while true do end', 0).catch((error: unknown) => error);
      await eventually(() => isBusy(admin));
      setTimeout(() => void admin.script('KILL'), 100); // by then the commit was refused
    });
    expect(await busy).toMatchObject({ message: expect.stringContaining('killed') });
    expect([outcome, runs, await one.redis.get(one.key('order'))]).toEqual(['committed', 1, '1']);
  });

  it('to one that is busy, and nobody loses a lock over the commits of others that are refused meanwhile', async () => {
    const server = await startServer();
    const one = await start({ url: server.url, commandTimeout: 2_000, ttl: 5_000 });
    const [admin, slow] = [client(server), client(server)];
    await admin.config('SET', 'lua-time-limit', '20');
    await one.locks.withLock('warm-up', ({ multi }) => multi.set(one.key('warm-up'), 1));
    let runs = 0;
    let open = () => undefined as void;
    const gate = new Promise<void>((resolve) => (open = resolve));
    const all = Array.from({ length: 100 }, (_, i) =>
      one.locks.withLock(`busy:${i}`, async ({ multi, commit }) => {
        runs += 1;
        await gate;
        for (let turn = 0; turn < i % 10; turn += 1) await new Promise(setImmediate);
        multi.incr(one.key('busy'));
        await commit(); // from here on the work must not run again
        multi.incr(one.key('busy'));
      }),
    );
    await eventually(() => runs === 100);
    const busy = slow.eval(BUSY_FOR_200_MS, 0);
    await eventually(() => isBusy(admin));
    open();
    await Promise.all(all);
    await busy;
    expect([runs, await one.redis.get(one.key('busy'))]).toEqual([100, '200']);
  });

  it('whose connections are all killed, gets the commit once on new ones', async () => {
    const server = await startServer();
    const one = await start({ url: server.url });
    const { outcome } = await commitAcross(one, () => one.redis.call('CLIENT', 'KILL', 'TYPE', 'normal'));
    // In one run, or in two if it was sent before the client had heard of the end of the connection.
    expect([outcome, await one.redis.get(one.key('order'))]).toEqual(['committed', '1']);
  });

  it('to a replica that was promoted, gets the commit once', async () => {
    const [primary, replica] = [await startServer(AT_ONCE), await startServer()];
    const [old, next] = [client(primary), client(replica)];
    const proxy = owned(await startFaultProxy(primary.url), (each) => each.close());
    const one = await start({ url: replica.url, connection: proxy.url, ttl: 5_000 });
    await next.replicaof('127.0.0.1', Number(new URL(primary.url).port));
    await eventually(async () => (await next.info('replication')).includes('master_link_status:up'));
    const { outcome } = await commitAcross(one, async () => {
      await old.set('mark', 1); // WAIT is about what its own connection wrote
      expect(await old.wait(1, 2_000)).toBe(1);
      await next.replicaof('NO', 'ONE');
      proxy.leadTo(replica.url);
      await old.replicaof('127.0.0.1', Number(new URL(replica.url).port)); // it refuses writes from here on
      proxy.cut();
    });
    expect([outcome, await next.get(one.key('order'))]).toEqual(['committed', '1']);
  });

  it('to one that was restarted and kept its data, gets the commit once, in one run', async () => {
    const folder = owned(await mkdtemp(join(tmpdir(), 'kept-')), (path) => rm(path, { recursive: true }));
    const args = ['--appendonly', 'yes', '--appendfsync', 'always', '--dir', folder];
    let server = await privateRedis(args);
    owned(server, () => server.stop());
    const one = await start({ url: server.url, ttl: 8_000 });
    const { outcome, runs } = await commitAcross(one, async () => {
      await server.stop();
      server = await privateRedisAt(Number(new URL(server.url).port), args);
    });
    expect([outcome, runs, await one.redis.get(one.key('order'))]).toEqual(['committed', 1, '1']);
  });

  it('to a replica, and the old connections stay open: the commit goes to the new primary, in one run', async () => {
    const [primary, replica] = [await startServer(AT_ONCE), await startServer()];
    const [old, next] = [client(primary), client(replica)];
    const proxy = owned(await startFaultProxy(primary.url), (each) => each.close());
    const one = await start({ url: replica.url, connection: proxy.url, ttl: 5_000 });
    await next.replicaof('127.0.0.1', Number(new URL(primary.url).port));
    await eventually(async () => (await next.info('replication')).includes('master_link_status:up'));
    const { outcome, runs } = await commitAcross(one, async () => {
      await old.set('mark', 1); // WAIT is about what its own connection wrote
      expect(await old.wait(1, 2_000)).toBe(1);
      await next.replicaof('NO', 'ONE');
      proxy.leadTo(replica.url);
      await old.config('SET', 'min-replicas-to-write', '1'); // refuses writes; as a replica it would end connections
    });
    expect([outcome, runs, await next.get(one.key('order'))]).toEqual(['committed', 1, '1']);
  });

  it('does not let a small commit end what a big one watches', async () => {
    const server = await startServer();
    const proxy = owned(await startFaultProxy(server.url), (each) => each.close());
    const one = await start({ url: server.url, connection: proxy.url });
    const long = 'x'.repeat(500); // too long for one network segment: the guard is read first
    await one.locks.withLock(long, ({ multi }) => multi.set(one.key('warm-up'), 1));
    await one.locks.withLock('small', ({ multi }) => multi.set(one.key('warm-up'), 1));
    let small: Promise<unknown> = Promise.resolve();
    const big = one.locks
      .withLock(long, { retries: 0 }, ({ multi, lock }) => {
        multi.incr(one.key('big'));
        // Between the guard and the transaction the lock is lost, while another commit is sent.
        proxy.arm({ side: 'reply', word: `${lock.token}#1`, at: () => 0, how: 'delay' });
        const robbed = async () => {
          await eventually(() => proxy.fired());
          small = one.locks.withLock('small', (context) => context.multi.incr(one.key('small')));
          await one.redis.del(`${one.prefix}:{${long}}`);
        };
        void robbed();
      })
      .catch((error: unknown) => error);
    expect(await big).toMatchObject({ code: 'LOCK_LOST' });
    await small;
    expect(await one.redis.mget(one.key('big'), one.key('small'))).toEqual([null, '1']);
  });
});
