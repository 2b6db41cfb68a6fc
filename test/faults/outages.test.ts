import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterEach, describe, expect, it } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { Redis } from 'ioredis';
import { LockUnavailableError } from '../../lib/index.js';
import type { RedisLockModuleOptions } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { privateRedis, privateRedisAt } from '../support/redis/test-redis.js';

/** Nobody waits as long as this here: what settles has not waited for its deadline. */
const TOO_LONG = 120_000;

describe('while Redis cannot be reached', () => {
  const endings: (() => Promise<unknown>)[] = [];
  afterEach(async () => {
    for (const end of endings.splice(0).reverse()) await end();
  });
  const start = async (options: RedisLockModuleOptions & { url?: string }) => {
    const one = await startLocks(options);
    one.redis.on('error', () => undefined); // of servers that a test has stopped
    endings.push(async () => {
      one.redis.disconnect();
      await one.app.close();
    });
    return one;
  };
  const startServer = async () => {
    const server = await privateRedis();
    endings.push(() => server.stop());
    return server;
  };
  const errorOf = (promise: Promise<unknown>) =>
    promise.then(
      () => undefined,
      (error: unknown) => error,
    );
  /** In every way in which Redis is asked. */
  const refusals = ({ locks }: LockApplication) =>
    Promise.all(
      [
        locks.acquire('x'),
        locks.acquire('x', { wait: 60_000 }),
        locks.tryAcquire(['x', 'y']),
        locks.withLock('x', ({ multi }) => multi.set('never', 1)),
        locks.inspect('x'),
        locks.list().next(),
      ].map(errorOf),
    );

  const wrong: [string, RegExp, () => Promise<RedisLockModuleOptions['connection']>][] = [
    ['a password is wrong', /WRONGPASS/, async () => protectedBy('wrong')],
    ['a password is missing', /NOAUTH/, async () => protectedBy('')],
    ['nobody listens', /ECONNREFUSED/, async () => ({ host: '127.0.0.1', port: 1 })],
    ['nobody listens on any address of a name', /ECONNREFUSED/, async () => 'redis://localhost:1'],
    ['a host has no address', /ENOTFOUND|EAI_AGAIN/, async () => 'redis://nowhere.invalid'],
    ['there is no socket', /ENOENT/, async () => '/nowhere/redis.sock'],
  ];
  const protectedBy = async (password: string) => {
    const server = await privateRedis();
    endings.push(() => server.stop());
    const admin = new Redis(server.url);
    await admin.config('SET', 'requirepass', 'secret');
    admin.disconnect();
    return { port: Number(new URL(server.url).port), password };
  };
  it.each(wrong)('because %s, calls are told so at once, as the cause', async (_why, cause, connection) => {
    const one = await start({ connection: await connection(), commandTimeout: TOO_LONG });
    for (const error of await refusals(one)) {
      expect(error).toBeInstanceOf(LockUnavailableError);
      expect((error as Error).message).toMatch(cause);
      expect((error as Error).cause).toBeInstanceOf(Error);
      expect((error as Error).cause).toMatchObject({ message: expect.stringMatching(cause) });
    }
  });

  it('because a password is wrong, no error shows it', async () => {
    const one = await start({ connection: await protectedBy('not-to-be-seen'), commandTimeout: 1_000 });
    expect(inspect(await refusals(one), { depth: 10 })).not.toContain('not-to-be-seen');
  });

  it('which was there before, calls wait for a restart, and are refused when it takes too long', async () => {
    const server = await startServer();
    const port = Number(new URL(server.url).port);
    const one = await start({ url: server.url, commandTimeout: 10_000 });
    await (await one.locks.acquire('before')).release();
    await server.stop();
    const waited = one.locks.acquire('restart');
    const again = await privateRedisAt(port);
    endings.push(() => again.stop());
    await (await waited).release();
    await again.stop();
    // A quarter of commandTimeout after it went away.
    expect(await errorOf(one.locks.acquire('too long'))).toMatchObject({
      code: 'LOCK_UNAVAILABLE',
      cause: { code: 'ECONNREFUSED' },
    });
  });

  it('for longer than a call would wait, who has a place in line keeps waiting, and locks are held on to', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'kept-'));
    endings.push(() => rm(folder, { recursive: true }));
    const args = ['--appendonly', 'yes', '--appendfsync', 'always', '--dir', folder];
    const server = await privateRedis(args);
    const one = await start({ url: server.url, commandTimeout: 200, ttl: 8_000 });
    const held = await one.locks.acquire('held');
    const waiting = one.locks.withLock('held', { wait: 20_000 }, ({ multi }) => multi.set('served', 1));
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{held}`)) === 1);
    await server.stop();
    await eventually(async () => (await errorOf(one.locks.acquire('free'))) !== undefined);
    expect(held.held).toBe(true);
    const again = await privateRedisAt(Number(new URL(server.url).port), args);
    endings.push(() => again.stop());
    await eventually(async () => (await errorOf(one.locks.acquire('free again'))) === undefined);
    await held.release();
    await waiting;
    expect(await one.redis.get('served')).toBe('1');
  });

  it('one warning is logged, and one line when every connection is there again', async () => {
    const said: string[] = [];
    const note = (level: string) => (message: unknown) => {
      if (String(message).startsWith('Redis connection')) said.push(`${level}: ${message}`);
    };
    let server = await privateRedis();
    endings.push(() => server.stop());
    const port = Number(new URL(server.url).port);
    const one = await start({ url: server.url, commandTimeout: 400 });
    Logger.overrideLogger({ log: note('log'), warn: note('warn'), error: note('error') });
    endings.push(async () => Logger.overrideLogger(false));
    const commit = () => errorOf(one.locks.withLock('x', ({ multi }) => multi.incr('n')));
    for (const lines of [2, 4]) {
      await (await one.locks.acquire('subscribes', { wait: 10_000 })).release();
      await server.stop();
      for (let i = 0; i < 5; i += 1) await commit();
      server = await privateRedisAt(port);
      await eventually(async () => (await commit()) === undefined && said.length >= lines);
    }
    const lines = said.map((line) => line.replace(/ECONN.*/, ''));
    expect(lines).toEqual([
      'warn: Redis connection: connect ',
      'log: Redis connection: it is there again',
      'warn: Redis connection: connect ',
      'log: Redis connection: it is there again',
    ]);
  });
});
