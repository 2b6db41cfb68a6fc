import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockLostError, LockService, RedisLockModule, getLockServiceToken } from '../../lib/index.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** How work under a lock ends for its caller, whatever becomes of the lock. */
describe('the end of work under a lock', () => {
  it.each([
    ['result', undefined],
    ['error', new Error('its own')],
  ])('is its own %s, also when the release that follows is not answered', async (_, own) => {
    await using proxy = await startCountingProxy(sharedRedisUrl());
    await using one = await startLocks({
      url: sharedRedisUrl(),
      connection: proxy.url,
      commandTimeout: 300,
    });
    await (await one.locks.acquire('unanswered')).release(); // connected, and the scripts are known
    const outcome = await one.locks
      .withLock('unanswered', () => {
        proxy.holdReplies();
        if (own) throw own;
        return 'its own';
      })
      .catch((error: unknown) => error);
    proxy.passReplies();
    expect(outcome).toBe(own ?? 'its own');
    await eventually(async () => (await one.redis.exists(`${one.prefix}:{unanswered}`)) === 0);
  });

  it.each([
    ['at its end', false],
    ['in between', true],
  ])('does not call afterCommit for a commit %s that was refused', async (_, inBetween) => {
    await using one = await startLocks();
    const heard: unknown[] = [];
    const work = one.locks.withLock('refused', { retries: 0 }, async ({ multi, afterCommit, commit }) => {
      afterCommit((replies) => void heard.push(replies));
      multi.incr(one.key('refused'));
      await one.redis.del(`${one.prefix}:{refused}`);
      if (inBetween) await commit();
    });
    await expect(work).rejects.toBeInstanceOf(LockLostError);
    expect([heard, await one.redis.exists(one.key('refused'))]).toEqual([[], 0]);
  });

  it('comes when the application closes only after it has had the further locks that it waits for', async () => {
    await using other = await startLocks();
    await using one = await startLocks({ keyPrefix: other.prefix });
    const held = await other.locks.acquire('inner');
    const work = one.locks.withLock('outer', () =>
      one.locks.withLock('inner', { wait: 10_000 }, () => 'both'),
    );
    work.catch(() => undefined); // heard below
    const inLine = () => other.redis.zcard(`${other.prefix}:queue:{inner}`);
    await eventually(async () => (await inLine()) === 1);
    const closed = one.app.close();
    await eventually(async () => {
      const refusal = await one.locks.acquire('another').catch((error: { reason?: string }) => error.reason);
      return refusal === 'shutdown'; // it closes
    });
    expect(await inLine()).toBe(1);
    await held.release();
    await closed;
    expect(await work).toBe('both');
  });

  it('does not join a lock of the same name that another service of the application holds elsewhere', async () => {
    await using one = await startLocks();
    const url = `${sharedRedisUrl()}/7`;
    class Both {}
    Module({
      imports: [
        RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: one.prefix }),
        RedisLockModule.forRoot({ name: 'other', connection: url, keyPrefix: one.prefix }),
      ],
    })(Both);
    const app = await NestFactory.createApplicationContext(Both, { logger: false });
    const elsewhere = new Redis(url);
    try {
      const [here, there] = [app.get(LockService), app.get<LockService>(getLockServiceToken('other'))];
      const owners = await here.withLock('same', (outer) =>
        there.withLock('same', async (inner) => ({
          here: (await one.redis.get(`${one.prefix}:{same}`)) === outer.lock.token,
          there: (await elsewhere.get(`${one.prefix}:{same}`)) === inner.lock.token,
        })),
      );
      expect(owners).toEqual({ here: true, there: true });
    } finally {
      await elsewhere.del(`${one.prefix}:fence:{same}`);
      elsewhere.disconnect();
      await app.close();
    }
  });
});
