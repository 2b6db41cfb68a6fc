import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import type { Redis } from 'ioredis';
import { LockError } from '../../lib/index.js';
import type { Lock, LockState } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

/** What another program may have put into the keys of the lock on `spoilt`, and what of it is a holder. */
type Spoil = (redis: Redis, keys: { owner: string; queue: string; fence: string }) => Promise<unknown>;
const inFence =
  (fields: Record<string, string>): Spoil =>
  (redis, { fence }) =>
    redis.hset(fence, fields);
const inQueue =
  (...members: string[]): Spoil =>
  (redis, { queue }) =>
    redis.zadd(queue, ...members.flatMap((member, i) => [i + 1, member]));

const SPOILT: [what: string, spoil: Spoil, holder?: string][] = [
  ['an owner that is a list', (redis, { owner }) => redis.rpush(owner, 'x'), ''],
  ['an owner that is empty', (redis, { owner }) => redis.set(owner, ''), ''],
  ['an owner without an end', (redis, { owner }) => redis.set(owner, 'SETNX of another program'), 'SETNX of another program'],
  ['a queue that is a string', (redis, { queue }) => redis.set(queue, 'x')],
  ['300 places of no tokens', inQueue(...Array.from({ length: 300 }, (_, i) => `garbage${'x'.repeat(i)}`))],
  ['places that are empty, colons, or without a ttl', inQueue('', ':::', 'abc:1:', 'abc:1:0')],
  ['a place with a ttl that Redis cannot count', inQueue('abc:1:99999999999999999999')],
  ['a fence that is a string', (redis, { fence }) => redis.set(fence, 'x')],
  ['a fencing token that is no number', inFence({ last: 'abc' })],
  ['a fencing token that is too large', inFence({ last: '1e300' })],
  ['a fencing token that is infinite', inFence({ last: 'inf' })],
  ['a fencing token that is not a number at all', inFence({ last: 'nan' })],
  ['a fencing token below zero', inFence({ last: '-5' })],
  ['a belief that never ends', inFence({ last: '5', believed: '1e300' })],
  ['an end that never comes', inFence({ last: '5', kept: '1e300' })],
  ['a provisional owner without a name', inFence({ last: '5', provisional: '' })],
]; // prettier-ignore

describe('keys that another program has written into', () => {
  let one: LockApplication;
  let other: LockApplication;
  let keys: Parameters<Spoil>[1];
  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
    const { prefix } = one;
    keys = {
      owner: `${prefix}:{spoilt}`,
      queue: `${prefix}:queue:{spoilt}`,
      fence: `${prefix}:fence:{spoilt}`,
    };
  });
  beforeEach(() => one.redis.del(...Object.values(keys)));
  afterAll(() => closeAll(one, other));

  const listed = async () => {
    const found: LockState[] = [];
    for await (const state of one.locks.list()) found.push(state);
    return found.sort((a, b) => (a.resource < b.resource ? -1 : 1));
  };

  it.each(SPOILT)(
    'are shown with what can be known, spoil no other lock, and work after forceRelease: %s',
    async (...spoilt) => {
      const [, spoil, holder] = spoilt;
      await using _good = await one.locks.acquire('good');
      await spoil(one.redis, keys);
      const state =
        holder === undefined
          ? null
          : expect.objectContaining({ resource: 'spoilt', holder, fencingToken: 0, waiters: 0 });
      expect(await one.locks.inspect('spoilt')).toEqual(state);
      expect(await listed()).toEqual([
        expect.objectContaining({ resource: 'good' }),
        ...(state ? [state] : []),
      ]);

      const outcome: unknown = await one.locks
        .acquire('spoilt', { wait: 20 })
        .catch((error: unknown) => error);
      if (!(outcome instanceof LockError)) await (outcome as Lock).release();

      expect(await one.locks.forceRelease('spoilt')).toBe(holder !== undefined);
      const held = await one.locks.acquire('spoilt');
      expect(held.fencingToken).toBeGreaterThan(0);
      const next = other.locks.acquire('spoilt', { wait: 5_000 });
      await eventually(async () => (await one.redis.zcard(keys.queue)) === 1);
      await held.release();
      await (await next).release();
      expect(await one.redis.exists(keys.owner, keys.queue)).toBe(0);
      expect(await one.redis.pttl(keys.fence)).toBeGreaterThan(0);
    },
  );

  it('lose no waiter by forceRelease, where the queue is fine: the lock goes to the first one', async () => {
    const held = await one.locks.acquire('spoilt', { autoExtend: false });
    const waiters = [1, 2].map(() => other.locks.acquire('spoilt', { wait: 5_000 }));
    await eventually(async () => (await one.redis.zcard(keys.queue)) === 2);
    await one.redis.zadd(keys.queue, 1, ':::');
    await one.redis.del(keys.owner, keys.fence);
    await one.redis.rpush(keys.owner, 'x');
    await one.redis.set(keys.fence, 'x');
    expect(await listed()).toEqual([expect.objectContaining({ resource: 'spoilt', holder: '', waiters: 3 })]);
    expect(await one.locks.forceRelease('spoilt')).toBe(true);
    const first = await Promise.race(waiters);
    expect(await one.locks.inspect('spoilt')).toMatchObject({ holder: first.token, waiters: 1 });
    expect(first.fencingToken).toBeGreaterThan(held.fencingToken);
    await first.release();
    for (const waiter of waiters) await (await waiter).release();
    await held.release();
  });
});
