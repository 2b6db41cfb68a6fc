import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockOutcomeUnknownError } from '../../lib/index.js';
import { sendCommit } from '../../lib/redis/commit-pipeline.js';
import { ResourceKeys } from '../../lib/redis/lock-keys.js';
import { LockStore } from '../../lib/redis/lock-store.js';
import { SingleServer } from '../../lib/redis/servers.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** Commits are recorded in the fence hash, so that a lost reply can be settled. */
describe('the record of a commit', () => {
  let one: LockApplication;
  let other: LockApplication;
  let servers: SingleServer;
  let store: LockStore;
  let commits: Redis;
  beforeAll(async () => {
    one = await startLocks();
    other = await startLocks({ keyPrefix: one.prefix });
    commits = new Redis(sharedRedisUrl());
    servers = new SingleServer(
      {
        duplicate: (options) => new Redis(sharedRedisUrl(), options),
        keyPrefix: one.prefix,
        channelOf: () => `${one.prefix}:wake:test`,
        commandTimeout: 1_000,
        replicas: 0,
        listener: {
          onReady: () => undefined,
          onLost: () => undefined,
          onWakeUp: () => undefined,
          onSubscribed: () => undefined,
          onMoved: () => undefined,
          onRenewal: () => undefined,
        },
      },
      '',
    );
    store = new LockStore(servers, 1_000, 0);
  });
  afterAll(async () => {
    await store.close();
    await servers.close();
    commits.disconnect();
    await closeAll(one, other);
  });

  const take = async (resource: string) => {
    const claim = { token: `test:${resource}:60000`, keys: [new ResourceKeys(one.prefix, resource)] };
    const reply = await store.acquire(claim, 60_000);
    if (!reply.granted) throw new Error('It is not free');
    return { claim, fencingToken: reply.fencingTokens[0] ?? 0 };
  };
  const commit = ({ claim, fencingToken }: Awaited<ReturnType<typeof take>>, number: number, key: string) =>
    sendCommit(
      commits,
      {
        claim,
        fencingToken,
        alsoHeld: [],
        number,
        place: 0,
        commands: [{ method: 'incr', args: [one.key(key)] }],
        keep: true,
      },
      1_000,
      (redis) => redis.disconnect(),
    );

  it('has a commit that arrives twice refused', async () => {
    const held = await take('twice');
    expect(await commit(held, 1, 'twice')).toMatchObject({ outcome: 'applied', replies: [1] });
    expect(await commit(held, 1, 'twice')).toEqual({ outcome: 'lost' });
    expect(await commit(held, 2, 'twice')).toMatchObject({ outcome: 'applied', replies: [2] });
    expect(await one.redis.get(one.key('twice'))).toBe('2');
    await store.burn(held.claim);
  });

  it('is found however often others commit under the lock meanwhile', async () => {
    const held = await take('remembered');
    await commit(held, 1, 'remembered');
    const settled = { number: 1, place: 0, fencingToken: held.fencingToken };
    expect(await store.burn(held.claim, settled)).toBe('committed');
    for (let grant = 1; grant <= 200; grant += 1) {
      await other.locks.withLock('remembered', ({ multi }) => multi.incr(one.key('remembered')));
    }
    expect(await store.burn(held.claim, settled)).toBe('committed');
  });

  it('does not grow with the commits of a client, but with the clients, and of those the latest are remembered', async () => {
    const fence = `${one.prefix}:fence:{many}`;
    const held = await take('many');
    await commit(held, 1, 'many');
    const settled = { number: 1, place: 0, fencingToken: held.fencingToken };
    await store.burn(held.claim, settled);
    for (let i = 0; i < 20; i += 1) {
      await other.locks.withLock('many', ({ multi }) => multi.incr(one.key('many')));
    }
    const places = async () => (await one.redis.hkeys(fence)).filter((field) => field.startsWith('c:'));
    expect(await places()).toHaveLength(2);
    const last = Number(await one.redis.hget(fence, 'last'));
    for (let client = 1; client <= 300; client += 1) {
      await one.redis.hset(fence, `c:client${client}:0`, `${last + client}=client${client}:1:1000#1`);
    }
    await one.redis.hset(fence, { kept: 0, last: last + 300 }); // as a minute later
    await (await one.locks.acquire('many')).release();
    expect((await places()).length).toBeLessThanOrEqual(128);
    expect(await places()).toContain('c:client300:0');
    expect(await store.burn(held.claim, settled)).toBe('unknown'); // rather than that it never was
    expect(
      await store.burn(
        { ...held.claim, token: 'client300:1:1000' },
        { number: 1, place: 0, fencingToken: last + 300 },
      ),
    ).toBe('committed');
  });

  it('that is not there says that the commit will never be, or nothing when the hash was lost', async () => {
    const held = await take('missing');
    expect(await store.burn(held.claim, { number: 1, place: 0, fencingToken: held.fencingToken })).toBe(
      'gone',
    );
    expect(await commit(held, 1, 'missing')).toEqual({ outcome: 'lost' });
    await one.redis.del(`${one.prefix}:fence:{missing}`);
    expect(await store.burn(held.claim, { number: 1, place: 0, fencingToken: held.fencingToken })).toBe(
      'unknown',
    );
    expect(await one.redis.exists(one.key('missing'))).toBe(0);
  });

  it('never has fencing tokens ahead of the clock, so that they grow across FLUSHALL too', async () => {
    for (let i = 0; i < 50; i += 1) {
      const before = await one.locks.withLock('flushed', ({ fencingToken }) => fencingToken);
      const [seconds, microseconds] = (await one.redis.time()) as unknown as [number, number];
      expect(before).toBeLessThanOrEqual(Number(seconds) * 1e6 + Number(microseconds));
    }
  });

  it('is not overwritten by another commit of the same client while it is not known what became of it', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const shaky = await startLocks({ url: sharedRedisUrl(), connection: proxy.url, commandTimeout: 700 });
    try {
      await shaky.locks.withLock('asked', ({ multi }) => multi.set(shaky.key('warm'), 1));
      await shaky.locks.withLock('asked', async ({ multi, watch }) => {
        await watch(shaky.key('watched'));
        multi.set(shaky.key('warm'), 2);
      });
      proxy.holdReplies(shaky.key('marked'));
      const unanswered = shaky.locks.withLock('asked', ({ multi }) => multi.incr(shaky.key('marked')));
      await eventually(async () => (await shaky.redis.get(shaky.key('marked'))) === '1');
      // On a connection of its own, and answered.
      await shaky.locks.withLock('asked', async ({ multi, watch }) => {
        await watch(shaky.key('watched'));
        multi.incr(shaky.key('second'));
      });
      proxy.cut(shaky.key('marked')); // its answer is lost
      proxy.passReplies();
      await unanswered;
      expect(await shaky.redis.mget(shaky.key('marked'), shaky.key('second'))).toEqual(['1', '1']);
    } finally {
      proxy.passReplies();
      await shaky.close();
      await proxy.close();
    }
  });

  it('is written when the script that releases is not known, and the lock is free afterwards', async () => {
    await one.locks.withLock('unknown', async ({ multi }) => {
      multi.incr(one.key('unknown'));
      await one.redis.script('FLUSH');
    });
    expect(await one.redis.get(one.key('unknown'))).toBe('1');
    expect(await one.redis.exists(`${one.prefix}:{unknown}`)).toBe(0);
  });

  it('is true for each of two commits at once of which the first one lost its reply', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const cut = await startLocks({ url: sharedRedisUrl(), connection: proxy.url });
    const outcomes: PromiseSettledResult<unknown>[] = [];
    await cut.locks.withLock('warm', ({ multi }) => multi.set(cut.key('warm'), 1));
    await cut.locks
      .withLock('two', async ({ multi, commit: commitNow }) => {
        multi.incr(cut.key('first'));
        proxy.dropNextReply();
        const first = commitNow();
        multi.incr(cut.key('second'));
        outcomes.push(...(await Promise.allSettled([first, commitNow()])));
      })
      .catch(() => undefined);
    // The first was applied, which is all that is known of it; to find out, its lock was given up.
    expect(outcomes[0]).toMatchObject({ status: 'rejected', reason: expect.any(LockOutcomeUnknownError) });
    expect(outcomes[1]).toMatchObject({ status: 'rejected', reason: { code: 'LOCK_LOST' } });
    expect(await cut.redis.mget(cut.key('first'), cut.key('second'))).toEqual(['1', null]);
    await cut.close();
    await proxy.close();
  });
});
