import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { LockLostError } from '../../lib/index.js';
import type { AcquireOptions, Lock } from '../../lib/index.js';
import { PROVISIONAL_TTL } from '../../lib/redis/script-parts.js';
import { nameOf } from '../../lib/redis/tokens.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import type { CountingProxy } from '../support/counting-proxy.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { channelOf, messageTo } from '../support/wake-ups.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** What every script is sent as. */
const SCRIPTS = 'eval';
/** What the text of a renewal contains, and no other script does. */
const RENEWAL = 'renewed';

describe('a lock that another process hands over', () => {
  let proxy: CountingProxy;
  let one: LockApplication;
  let other: LockApplication;

  beforeEach(async () => {
    proxy = await startCountingProxy(sharedRedisUrl());
    one = await startLocks({ connection: proxy.url, ttl: 4_000, commandTimeout: 600 });
    other = await startLocks({ keyPrefix: one.prefix });
  });
  afterEach(async () => {
    proxy.passRequests();
    await other.app.close();
    other.redis.disconnect();
    await one.close();
    await proxy.close();
  });

  const keyOf = (kind: '' | 'queue:' | 'fence:') => `${one.prefix}:${kind}{given}`;
  const owner = () => one.redis.get(keyOf(''));
  const provisional = () => one.redis.hget(keyOf('fence:'), 'provisional');
  const lastFencingToken = async () => Number(await one.redis.hget(keyOf('fence:'), 'last'));
  const waiters = () => one.redis.zrange(keyOf('queue:'), '0', '-1');

  /** Starts to wait, and resolves when the place is taken and this process knows of it. */
  const queueUp = async (options: AcquireOptions = {}, from = one) => {
    const before = await waiters();
    const lock = from.locks.acquire('given', { wait: 10_000, ...options });
    lock.catch(() => undefined); // whoever looks at it hears of it
    let token: string | undefined;
    await eventually(async () => {
      token = (await waiters()).find((each) => !before.includes(each));
      return token !== undefined;
    });
    await from.locks.tryAcquire('given'); // its answer comes after that to the wish to wait
    return { lock, token: token ?? '' };
  };

  /** Has the waiter ask, so that its last question is not long ago. */
  const remind = async (token: string, from = one) => {
    await one.redis.publish(channelOf(one.prefix, token), messageTo(token, keyOf('')));
    await from.redis.ping(); // on the same server: the message is ahead of what is asked next
    await from.locks.tryAcquire('given');
  };

  /** Whether it has settled before what Redis is asked now has been answered, twice over. */
  const hasBegun = async (lock: Promise<Lock>) => {
    let begun = false;
    lock.then(() => (begun = true)).catch(() => undefined);
    await one.redis.ping();
    await other.locks.inspect('given');
    return begun;
  };

  /** Has the lock handed over, and sees that the waiter takes it with the answer to an ask only. */
  const handOverToOneWhoAsks = async (held: Lock, lock: Promise<Lock>) => {
    proxy.holdRequestsWith(SCRIPTS);
    await held.release();
    expect(await hasBegun(lock)).toBe(false);
    proxy.passRequests();
    const mine = await lock;
    expect([mine.held, await owner()]).toEqual([true, mine.token]);
    await mine.release();
  };

  it('is the waiter’s before that could ask for it, and is renewed in time', async () => {
    const held = await other.locks.acquire('given');
    const { lock, token } = await queueUp({ ttl: 10_000 });
    await remind(token);
    const asked = performance.now();
    await elapse(200, asked);
    proxy.holdRequestsWith(SCRIPTS);
    await held.release();
    const mine = await lock;
    expect(mine.remaining).toBeLessThan(PROVISIONAL_TTL - 200); // no more than what is certain
    expect([mine.held, mine.token, mine.fencingToken]).toEqual([
      true,
      await owner(),
      await lastFencingToken(),
    ]);
    proxy.passRequests();
    await eventually(() => mine.remaining > PROVISIONAL_TTL);
    expect(await provisional()).toBeNull();
    expect(await one.redis.pttl(keyOf(''))).toBeGreaterThan(PROVISIONAL_TTL);
    await mine.release();
    expect(await owner()).toBeNull();
  });

  it('is lost when it cannot be renewed, no later than others may have it', async () => {
    const held = await other.locks.acquire('given');
    const { lock, token } = await queueUp({ ttl: 1_000 });
    const next = await queueUp({}, other);
    await remind(token);
    proxy.holdRequestsWith(SCRIPTS);
    await held.release();
    const mine = await lock;
    const heldBefore = mine.held;
    const theirs = await next.lock;
    expect([heldBefore, mine.held, mine.signal.reason]).toEqual([true, false, expect.any(LockLostError)]);
    proxy.passRequests();
    await mine.release();
    expect([theirs.held, await owner()]).toEqual([true, theirs.token]);
    await theirs.release();
  });

  it.each([
    [
      'of a grant before its last question',
      (token: string, last: number) => messageTo(token, keyOf(''), last),
    ],
    ['without a fencing token', (token: string) => messageTo(token, keyOf(''))],
    [
      'that was sealed for another fencing token',
      (token: string, last: number) =>
        messageTo(token, keyOf(''), last + 100).replace(String(last + 100), String(last + 200)),
    ],
    [
      'that was sealed without its secret',
      (token: string, last: number) => messageTo(nameOf(token), keyOf(''), last + 100),
    ],
    [
      'about another resource',
      (token: string, last: number) => messageTo(token, keyOf('').replace('given', 'other'), last + 100),
    ],
  ])('is nobody’s because of a message %s', async (what, message) => {
    const held = await other.locks.acquire('given');
    const { lock, token } = await queueUp();
    proxy.reset();
    await one.redis.publish(channelOf(one.prefix, token), message(token, held.fencingToken));
    if (what !== 'about another resource') await eventually(() => proxy.roundTrips() > 0); // it asks
    expect([await hasBegun(lock), held.held, await owner()]).toEqual([false, true, held.token]);
    await held.release();
    await (await lock).release();
  });

  it('is not begun with while the waiter asks: the answer comes first', async () => {
    const held = await other.locks.acquire('given');
    const { lock, token } = await queueUp();
    proxy.holdRequestsWith(SCRIPTS);
    proxy.reset();
    await one.redis.publish(channelOf(one.prefix, token), messageTo(token, keyOf('')));
    await eventually(() => proxy.roundTrips() > 0); // it asks
    await held.release();
    expect(await hasBegun(lock)).toBe(false);
    proxy.passRequests();
    await (await lock).release();
  });

  it('has to be asked for when that could not be before most of the grant is over', async () => {
    const held = await other.locks.acquire('given');
    const queued = performance.now();
    const { lock } = await queueUp({ ttl: 300 });
    await elapse(300, queued);
    await handOverToOneWhoAsks(held, lock);
  });

  it('has to be asked for after a connection was lost: the next one may lead to another server', async () => {
    const held = await other.locks.acquire('given');
    const { lock } = await queueUp();
    proxy.cut(SCRIPTS);
    const isBack = () =>
      one.locks.tryAcquire('given').then(
        () => true,
        () => false,
      );
    await eventually(isBack);
    await handOverToOneWhoAsks(held, lock);
  });

  it.each<AcquireOptions>([{ autoExtend: false }, { maxHold: 500 }])(
    'has to be asked for where its lease would not be renewed: %j',
    async (options) => {
      const held = await other.locks.acquire('given');
      const { lock } = await queueUp({ ttl: 1_200, ...options });
      await handOverToOneWhoAsks(held, lock);
    },
  );

  it('is renewed before its holder can keep the process busy', async () => {
    const here = await startLocks({ keyPrefix: one.prefix, ttl: 10_000 }); // the proxy is in this process
    const held = await other.locks.acquire('given');
    const { lock, token } = await queueUp({}, here);
    await remind(token, here);
    await held.release();
    const mine = await lock;
    const end = performance.now() + PROVISIONAL_TTL + 100;
    while (performance.now() < end);
    expect(mine.held).toBe(false); // nobody can tell yet
    await eventually(() => mine.held);
    expect([mine.signal.aborted, await owner()]).toEqual([false, mine.token]);
    await mine.release();
    await here.app.close();
    here.redis.disconnect();
  });

  it('is not lost for work that kept the process busy, nor for its extension', async () => {
    const here = await startLocks({ keyPrefix: one.prefix, ttl: 10_000 }); // the proxy is in this process
    const keepBusy = () => {
      const end = performance.now() + PROVISIONAL_TTL + 100;
      while (performance.now() < end);
    };
    const first = await other.locks.acquire('given');
    const work = here.locks.withLock('given', { wait: 10_000 }, () => {
      keepBusy();
      return 'done';
    });
    await eventually(async () => (await waiters()).length === 1);
    await here.locks.tryAcquire('given');
    await first.release();
    expect(await work).toBe('done');

    const second = await other.locks.acquire('given');
    const { lock } = await queueUp({}, here);
    await second.release();
    const mine = await lock;
    keepBusy();
    await mine.extend();
    expect([mine.held, await owner()]).toEqual([true, mine.token]);
    await mine.release();
    await here.app.close();
    here.redis.disconnect();
  });

  it('can watch for as long as a lock that was asked for', async () => {
    const held = await other.locks.acquire('given');
    let letGo = () => undefined as void;
    const gate = new Promise<void>((resolve) => (letGo = resolve));
    let watching = 0;
    const others = Array.from({ length: 7 }, (_, i) =>
      one.locks.withLock(`watching:${i}`, async ({ watch, key }) => {
        await watch(key('x'));
        watching += 1;
        await gate;
      }),
    );
    await eventually(() => watching === 7); // one is left for scopes inside of these
    let waitedFrom = 0;
    const work = one.locks.withLock('given', { wait: 10_000 }, async ({ watch, key }) => {
      waitedFrom = performance.now();
      await watch(key('x'));
      return performance.now() - waitedFrom;
    });
    await eventually(async () => (await waiters()).length === 1);
    await one.locks.tryAcquire('given');
    await held.release();
    await eventually(() => waitedFrom > 0 && performance.now() - waitedFrom > PROVISIONAL_TTL + 100);
    letGo();
    expect(await work).toBeGreaterThan(PROVISIONAL_TTL);
    await Promise.all(others);
  });

  it('can be passed on inside of the process, and leaves no trace of how it came', async () => {
    const held = await other.locks.acquire('given');
    const [first, second] = [await queueUp(), await queueUp()];
    await held.release();
    const mine = await first.lock;
    await eventually(async () => (await provisional()) === null);
    await one.redis.hset(keyOf('fence:'), 'provisional', mine.token); // as if the renewal had failed
    proxy.holdReplies(SCRIPTS);
    void mine.release();
    const next = await second.lock;
    expect([mine.held, next.held, next.fencingToken]).toEqual([false, true, mine.fencingToken + 1]);
    proxy.passReplies();
    await eventually(async () => (await owner()) === next.token);
    expect([await provisional(), await waiters()]).toEqual([null, []]);
    await next.release();
    expect(await owner()).toBeNull();
  });

  it('gives way to a commit at once, which gives it up without a trace', async () => {
    const held = await other.locks.acquire('given');
    const work = one.locks.withLock('given', { wait: 10_000 }, async ({ multi, lock }) => {
      expect(await provisional()).toBe(lock.token);
      multi.incr(one.key('n'));
    });
    await eventually(async () => (await waiters()).length === 1);
    await one.locks.tryAcquire('given');
    proxy.holdRequestsWith(RENEWAL);
    await held.release();
    await work;
    expect([await one.redis.get(one.key('n')), await owner(), await provisional()]).toEqual([
      '1',
      null,
      null,
    ]);
  });
});
