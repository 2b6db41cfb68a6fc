import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockConfigurationError, LockLostError } from '../../lib/index.js';
import type { LockState } from '../../lib/index.js';
import { FORCE_RELEASE } from '../../lib/redis/lock-scripts.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

async function all(states: AsyncIterable<LockState>): Promise<LockState[]> {
  const found: LockState[] = [];
  for await (const state of states) found.push(state);
  return found.sort((a, b) => (a.resource < b.resource ? -1 : 1));
}

describe('an operator', () => {
  let one: LockApplication;
  let other: LockApplication;
  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterAll(() => closeAll(one, other));

  it('sees who holds a lock, with which fencing token, for how long and how many wait', async () => {
    const lock = await one.locks.acquire('seen', { ttl: 5_000 });
    const waiters = [1, 2].map(() => other.locks.acquire('seen', { wait: 5_000 }));
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{seen}`)) === 2);
    const state = await other.locks.inspect('seen');
    expect(state).toEqual({
      resource: 'seen',
      holder: lock.token,
      fencingToken: lock.fencingToken,
      ttl: expect.any(Number),
      waiters: 2,
    });
    expect(state?.ttl).toBeGreaterThan(3_000);
    expect(state?.ttl).toBeLessThanOrEqual(5_000);
    await lock.release();
    for (const waiter of waiters) await (await waiter).release();
    expect(await other.locks.inspect('seen')).toBeNull();
    expect(await other.locks.inspect('never taken')).toBeNull();
  });

  it('finds all locks that are held, each once, those with a slot as well, and those that match', async () => {
    const locks = await Promise.all([
      ...Array.from({ length: 30 }, (_, i) => one.locks.acquire(`order:${i}`)),
      one.locks.acquire('order:[x]*'),
      one.locks.acquire('invoice:1'),
      other.locks.acquire('order:with-slot', { slot: 'orders' }),
      other.locks.acquire('order:two:parts', { slot: 'a:b' }),
    ]);
    expect(await all(one.locks.list())).toHaveLength(34);
    const orders = await all(one.locks.list({ match: 'order:*' }));
    expect(orders.map(({ resource }) => resource)).toEqual(
      locks
        .flatMap(({ resources }) => resources)
        .filter((name) => name !== 'invoice:1')
        .sort(),
    );
    const tokens = locks.flatMap(({ token, resources: [name] }) => (name === 'invoice:1' ? [] : [token]));
    expect(orders.map(({ holder }) => holder).sort()).toEqual(tokens.sort());
    const names = async (match: string) =>
      (await all(one.locks.list({ match }))).map(({ resource }) => resource);
    expect(await names('invoice:1')).toEqual(['invoice:1']);
    expect(await names('order:?')).toEqual(Array.from({ length: 10 }, (_, i) => `order:${i}`));
    expect(await names('order:\\[x]\\*')).toEqual(['order:[x]*']);
    expect(await names('*-slot')).toEqual(['order:with-slot']);
    expect(await names('nothing')).toEqual([]);
    await Promise.all(locks.map((lock) => lock.release()));
    expect(await all(one.locks.list())).toEqual([]);
  });

  it("finds locks under a client's own key prefix, whatever signs it has", async () => {
    const client = new Redis(sharedRedisUrl(), { keyPrefix: 'app[*]?\\:' });
    const prefixed = await startLocks({ connection: client });
    try {
      const lock = await prefixed.locks.acquire('prefixed');
      expect(await all(prefixed.locks.list())).toMatchObject([{ resource: 'prefixed', holder: lock.token }]);
      expect(await prefixed.locks.inspect('prefixed')).toMatchObject({ holder: lock.token });
      expect(await prefixed.locks.forceRelease('prefixed')).toBe(true);
      expect(await prefixed.locks.inspect('prefixed')).toBeNull();
    } finally {
      await client.del(`${prefixed.prefix}:fence:{prefixed}`);
      await prefixed.close();
      client.disconnect();
    }
  });

  it.each([
    ['of 512 bytes', 'x'.repeat(512)],
    ['of 513 bytes', 'x'.repeat(513)],
    ['of 600 bytes, with a sign of two bytes where it is cut', `x${'é'.repeat(300)}`],
    ['that looks like what is shown of another', `${'x'.repeat(480)}~${'h'.repeat(43)}`],
  ])('finds a lock with a name %s, and can name it by what it is shown', async (_, name) => {
    const lock = await one.locks.acquire(name);
    for (const match of ['*', 'x*', `${name.slice(0, 200)}*`]) {
      expect(await all(other.locks.list({ match }))).toMatchObject([{ holder: lock.token }]);
    }
    const [shown] = await all(other.locks.list());
    const { resource = '' } = shown ?? {};
    expect(Buffer.byteLength(resource)).toBeLessThanOrEqual(524);
    expect(await other.locks.inspect(resource)).toMatchObject({ resource, holder: lock.token });
    expect(await other.locks.forceRelease(resource)).toBe(true);
    expect(await all(other.locks.list())).toEqual([]);
    await lock.release();
  });

  it('finds a lock by its whole name, however long', async () => {
    for (const name of ['y'.repeat(512), 'y'.repeat(513)]) {
      const lock = await one.locks.acquire(name);
      expect(await all(other.locks.list({ match: name }))).toMatchObject([{ holder: lock.token }]);
      expect(await other.locks.inspect(name)).toMatchObject({ holder: lock.token });
      expect(await other.locks.forceRelease(name)).toBe(true);
      await lock.release();
    }
  });

  it('sees the slot of a lock, and names it by that', async () => {
    const slotted = await one.locks.acquire('item', { slot: 'cart' });
    expect(await other.locks.inspect('item')).toBeNull();
    expect(await other.locks.forceRelease('item', { slot: 'other' })).toBe(false);
    const plain = await one.locks.acquire('item');
    const states = await all(other.locks.list({ match: 'item' }));
    expect(states.map(({ slot, holder }) => [slot, holder])).toEqual(
      expect.arrayContaining([
        ['cart', slotted.token],
        [undefined, plain.token],
      ]),
    );
    const state = await other.locks.inspect('item', { slot: 'cart' });
    expect(state).toMatchObject({ resource: 'item', slot: 'cart', holder: slotted.token });
    expect(await other.locks.forceRelease('item', { slot: 'cart' })).toBe(true);
    expect(await other.locks.inspect('item', { slot: 'cart' })).toBeNull();
    expect(await other.locks.inspect('item')).toMatchObject({ holder: plain.token });
    await plain.release();
    await slotted.release();
  });

  it('stops looking when the loop that asked for locks does', async () => {
    const locks = await Promise.all([1, 2, 3].map((i) => one.locks.acquire(`loop:${i}`)));
    let seen = 0;
    for await (const state of one.locks.list({ match: 'loop:*' })) {
      seen += 1;
      expect(state.waiters).toBe(0);
      break;
    }
    expect(seen).toBe(1);
    await Promise.all(locks.map((lock) => lock.release()));
  });

  it('can take a lock away: it is free, and its holder commits nothing', async () => {
    const outcome = one.locks.withLock('taken', { retries: 0 }, async ({ multi }) => {
      multi.set(one.key('taken'), 'never');
      expect(await other.locks.forceRelease('taken')).toBe(true);
    });
    await expect(outcome).rejects.toBeInstanceOf(LockLostError);
    expect(await one.redis.get(one.key('taken'))).toBeNull();
    expect(await other.locks.forceRelease('taken')).toBe(false);
  });

  it.each([
    ['of another process', () => other],
    ['of the process that held it', () => one],
  ])('that takes a lock away has the next waiter get it, %s', async (_, waiting) => {
    // Nobody would ask before the end of this lease.
    const held = await one.locks.acquire('passed on', { ttl: 60_000 });
    const waiters = [1, 2].map(() => waiting().locks.acquire('passed on', { wait: 60_000, ttl: 60_000 }));
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{passed on}`)) === 2);
    expect(await other.locks.forceRelease('passed on')).toBe(true);
    const first = await Promise.race(waiters);
    expect((await one.locks.inspect('passed on'))?.holder).toBe(first.token);
    expect(first.fencingToken).toBeGreaterThan(held.fencingToken);
    await held.release(); // takes nothing away from the new holder
    expect((await one.locks.inspect('passed on'))?.holder).toBe(first.token);
    await first.release();
    const [, second] = await Promise.all(waiters);
    await second?.release();
  });

  it('takes no lock from a later owner when the request is read twice, or late', async () => {
    const held = await one.locks.acquire('read twice');
    expect(await other.locks.forceRelease('read twice')).toBe(true);
    const later = await one.locks.acquire('read twice');
    const keys = ['', 'queue:', 'fence:'].map((kind) => `${one.prefix}:${kind}{read twice}`);
    const again = await one.redis.eval(FORCE_RELEASE.text, 3, ...keys, 'nobody:0:0', held.token);
    expect([again, await one.redis.get(`${one.prefix}:{read twice}`)]).toEqual([[2], later.token]);
    await later.release();
    await held.release();
  });

  it('is told what a wrong name or pattern is', async () => {
    const wrong = expect.objectContaining({ code: 'LOCK_CONFIGURATION' });
    for (const name of ['', '{x}', 7 as unknown as string, undefined as unknown as string]) {
      await expect(one.locks.inspect(name)).rejects.toEqual(wrong);
      await expect(one.locks.forceRelease(name)).rejects.toEqual(wrong);
    }
    const slots: unknown[] = [{ slot: '' }, { slot: '{x}' }, { match: 'x' }, null];
    for (const options of slots as object[]) {
      await expect(one.locks.inspect('x', options)).rejects.toEqual(wrong);
      await expect(one.locks.forceRelease('x', options)).rejects.toEqual(wrong);
    }
    for (const match of ['', '{x}', 7 as unknown as string]) {
      await expect(all(one.locks.list({ match }))).rejects.toBeInstanceOf(LockConfigurationError);
    }
  });
});
