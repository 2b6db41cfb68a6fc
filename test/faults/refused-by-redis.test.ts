import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockTransactionError, LockUnavailableError } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';

describe('a commit that Redis refuses', () => {
  let server: ProvidedRedis;
  let admin: Redis;
  let one: LockApplication;

  beforeAll(async () => {
    server = await privateRedis();
    admin = new Redis(server.url);
    await admin.acl('SETUSER', 'app', 'on', '>secret', '~*', '&*', '+@all');
    const url = new URL(server.url);
    url.username = 'app';
    url.password = 'secret';
    one = await startLocks({ url: server.url, connection: url.href, commandTimeout: 300 });
  });
  afterAll(async () => {
    await one.close();
    admin.disconnect();
    await server.stop();
  });

  /** The connection for commits is open and tried out, whatever happened before. */
  beforeEach(async () => {
    await one.locks.withLock('warm-up', ({ multi }) => multi.set(one.key('warm-up'), 1));
  });

  /** Queues a write, lets the server change, and tells how the call ended. */
  const commitAfter = (resource: string, change: () => Promise<unknown>) =>
    one.locks
      .withLock(resource, { retries: 0 }, async ({ multi }) => {
        multi.set(one.key(resource), 'never').del(one.key(`${resource}:other`));
        await change();
      })
      .then(
        () => 'committed',
        (error: unknown) => error,
      );
  const applied = (resource: string) => admin.get(one.key(resource));
  const freed = (resource: string) =>
    eventually(async () => (await admin.exists(`${one.prefix}:{${resource}}`)) === 0, 1_000);

  const denials = ['eval', 'evalsha', 'multi', 'exec', 'hset', 'blpop', 'hmget'];
  it.each(denials)(
    'case 18d: applies nothing when %s is denied meanwhile and the lock is gone',
    async (command) => {
      const resource = `denied:${command}:lost`;
      const outcome = await commitAfter(resource, async () => {
        await admin.set(`${one.prefix}:{${resource}}`, 'somebody else', 'PX', 5_000);
        await admin.acl('SETUSER', 'app', `-${command}`);
      });
      await admin.acl('SETUSER', 'app', '+@all');
      expect(await applied(resource)).toBeNull();
      expect(outcome).not.toBe('committed');
      expect(await admin.get(`${one.prefix}:{${resource}}`)).toBe('somebody else');
      await admin.del(`${one.prefix}:{${resource}}`);
    },
  );

  it('never counts as a success what was applied because WATCH was denied meanwhile', async () => {
    const outcome = await commitAfter('unwatched', async () => {
      await admin.set(`${one.prefix}:{unwatched}`, 'somebody else', 'PX', 5_000);
      await admin.acl('SETUSER', 'app', '-watch');
    });
    await admin.acl('SETUSER', 'app', '+@all');
    expect(await admin.get(`${one.prefix}:{unwatched}`)).toBe('somebody else');
    await admin.del(`${one.prefix}:{unwatched}`);
    expect(outcome).toBeInstanceOf(LockTransactionError);
    expect(outcome).toMatchObject({
      applied: 'partial',
      cause: { message: expect.stringMatching(/^NOPERM/) },
    });
  });

  it.each(['eval', 'multi', 'exec'])(
    'says that locks are not available when %s is denied',
    async (command) => {
      const resource = `denied:${command}`;
      const outcome = await commitAfter(resource, () => admin.acl('SETUSER', 'app', `-${command}`));
      await admin.acl('SETUSER', 'app', '+@all');
      expect(outcome).toBeInstanceOf(LockUnavailableError);
      expect((outcome as Error).cause).toMatchObject({
        name: 'ReplyError',
        message: expect.stringMatching(/NOPERM/),
      });
      expect(await applied(resource)).toBeNull();
      await freed(resource);
      expect(await commitAfter(resource, async () => undefined)).toBe('committed');
    },
  );

  it('applies nothing when memory is full, and says so', async () => {
    const outcome = await commitAfter('full', () => admin.config('SET', 'maxmemory', '1'));
    await admin.config('SET', 'maxmemory', '0');
    expect(outcome).toBeInstanceOf(LockTransactionError);
    expect(outcome).toMatchObject({ applied: 'none', code: 'LOCK_TRANSACTION_FAILED' });
    expect((outcome as LockTransactionError).cause).toMatchObject({ message: expect.stringMatching(/^OOM/) });
    expect(await applied('full')).toBeNull();
    await freed('full');
  });

  it('gets no lock when memory is full, and leaves none behind', async () => {
    await admin.config('SET', 'maxmemory', '1');
    const outcome = await one.locks.acquire('full').catch((error: unknown) => error);
    await admin.config('SET', 'maxmemory', '0');
    expect(outcome).toBeInstanceOf(LockUnavailableError);
    await freed('full');
  });

  it('applies nothing on a read-only replica', async () => {
    const outcome = await commitAfter('replica', () => admin.replicaof('127.0.0.1', 1));
    await admin.replicaof('NO', 'ONE');
    expect(outcome).toBeInstanceOf(LockUnavailableError);
    expect(await applied('replica')).toBeNull();
    await freed('replica');
  });

  describe('because Redis can take none at the moment', () => {
    /** What makes Redis turn commits down, and take them again. */
    const refusals: [string, () => Promise<unknown>, () => Promise<unknown>][] = [
      [
        'NOREPLICAS',
        () => admin.config('SET', 'min-replicas-to-write', '1'),
        () => admin.config('SET', 'min-replicas-to-write', '0'),
      ],
      ['READONLY', () => admin.replicaof('127.0.0.1', 1), () => admin.replicaof('NO', 'ONE')],
    ];
    const timesRefused = async () =>
      Number(/errorstat_EXECABORT:count=(\d+)/.exec(await admin.info('errorstats'))?.[1] ?? 0);
    const keyOf = (word: string) => one.key(`watched:${word}`);

    it.each(refusals)('has work that watches run again when %s is over', async (word, refuse, take) => {
      let runs = 0;
      let over: Promise<unknown> | undefined;
      await one.locks.withLock('watching', { retries: 1 }, async ({ watch, multi }) => {
        runs += 1;
        await watch(keyOf(word));
        multi.incr(keyOf(word));
        if (runs > 1) return;
        const before = await timesRefused();
        await refuse();
        over = eventually(async () => (await timesRefused()) >= before + 3).finally(take);
      });
      await over;
      expect([runs, await admin.get(keyOf(word))]).toEqual([2, '1']);
    });

    it.each(refusals)(
      "says so of work that watches and must not run again, with Redis' %s as the cause",
      async (word, refuse, take) => {
        let over: Promise<unknown> | undefined;
        const error = await one.locks
          .withLock('watching', { retries: 0 }, async ({ watch, multi }) => {
            await watch(keyOf(`${word}:refused`));
            multi.incr(keyOf(`${word}:refused`));
            const before = await timesRefused();
            await refuse();
            over = eventually(async () => (await timesRefused()) > before).finally(take);
          })
          .catch((reason: unknown) => reason);
        await over;
        expect(error).toBeInstanceOf(LockUnavailableError);
        expect(error).toMatchObject({
          name: 'LockUnavailableError',
          status: 503,
          message: expect.stringContaining(word),
          cause: { name: 'ReplyError', message: expect.stringContaining(word) },
        });
        expect(await admin.get(keyOf(`${word}:refused`))).toBeNull();
        await freed('watching');
      },
    );

    it.each(refusals)(
      "says so of work that watches when commandTimeout is over, with Redis' %s as the cause",
      async (word, refuse, take) => {
        let runs = 0;
        const error = await one.locks
          .withLock('watching', async ({ watch, multi }) => {
            runs += 1;
            await watch(keyOf(`${word}:never`));
            multi.incr(keyOf(`${word}:never`));
            await refuse();
          })
          .catch((reason: unknown) => reason)
          .finally(take);
        expect(error).toBeInstanceOf(LockUnavailableError);
        const said = [(error as Error).message, String((error as Error).cause)].join(' ');
        expect([said.includes(word), runs]).toEqual([true, 1]);
        expect(await admin.get(keyOf(`${word}:never`))).toBeNull();
        await freed('watching');
      },
    );
  });

  it.each(['somebody else', 'its own holder'])(
    'for MULTI and its barrier is reported as applied, where the commands ran one by one, while %s had the lock',
    async (who) => {
      const resource = 'a'; // whose name is short enough for one network segment
      const owner = `${one.prefix}:{${resource}}`;
      const error = await one.locks
        .withLock(resource, { retries: 3 }, async ({ multi }) => {
          multi.incr(one.key(resource));
          if (who === 'somebody else') await admin.set(owner, who, 'PX', 5_000);
          await admin.acl('SETUSER', 'app', '-multi', '-blpop');
        })
        .catch((reason: unknown) => reason);
      await admin.acl('SETUSER', 'app', '+@all');
      expect(error).toBeInstanceOf(LockTransactionError);
      expect(error).toMatchObject({
        applied: 'partial',
        replies: [1],
        cause: { message: expect.stringMatching(/^NOPERM/) },
      });
      expect(await applied(resource)).toBe('1');
      expect(await admin.get(owner)).toBe(who === 'somebody else' ? who : null);
      await admin.del(owner, one.key(resource));
    },
  );

  it('case 18d: does not get that far where WATCH, MULTI, EVAL or PUBLISH is denied from the start', async () => {
    for (const command of ['watch', 'multi', 'eval', 'publish']) {
      await admin.acl('SETUSER', 'app', `-${command}`);
      const denied = await startLocks({
        url: server.url,
        connection: { port: Number(new URL(server.url).port), username: 'app', password: 'secret' },
        commandTimeout: 200,
      });
      const outcome = await denied.locks
        .withLock('denied', ({ multi }) => multi.set(denied.key('denied'), 'never'))
        .catch((error: unknown) => error);
      expect(outcome).toBeInstanceOf(LockUnavailableError);
      expect((outcome as Error).cause).toMatchObject({ message: expect.stringMatching(/NOPERM/) });
      expect(await denied.redis.get(denied.key('denied'))).toBeNull();
      await denied.close();
      await admin.acl('SETUSER', 'app', '+@all');
    }
  });
});
