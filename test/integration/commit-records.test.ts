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

/** Commits are recorded in the fence hash, in 64 places, so that a lost reply can be settled. */
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

  it('is found until its place is taken by the 64th grant after it', async () => {
    const held = await take('remembered');
    await commit(held, 1, 'remembered');
    expect(await store.burn(held.claim, { number: 1, fencingToken: held.fencingToken })).toBe('committed');
    for (let grant = 1; grant <= 64; grant += 1) {
      await other.locks.withLock('remembered', ({ multi }) => multi.incr(one.key('remembered')));
      const verdict = await store.burn(held.claim, { number: 1, fencingToken: held.fencingToken });
      expect([grant, verdict]).toEqual([grant, grant < 64 ? 'committed' : 'unknown']);
    }
  });

  it('that is not there says that the commit will never be, or nothing when the hash was lost', async () => {
    const held = await take('missing');
    expect(await store.burn(held.claim, { number: 1, fencingToken: held.fencingToken })).toBe('gone');
    expect(await commit(held, 1, 'missing')).toEqual({ outcome: 'lost' });
    await one.redis.del(`${one.prefix}:fence:{missing}`);
    expect(await store.burn(held.claim, { number: 1, fencingToken: held.fencingToken })).toBe('unknown');
    expect(await one.redis.exists(one.key('missing'))).toBe(0);
  });

  it('has a place that each grant moves on by one, however the lock was passed on', async () => {
    const tokens: number[] = [];
    const note = ({ fencingToken }: { fencingToken: number }) => void tokens.push(fencingToken);
    const held = await one.locks.acquire('places');
    note(held);
    const waiting = [one, other, one, other].map((each) =>
      each.locks.withLock('places', { wait: 5_000 }, note),
    );
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{places}`)) === 4);
    await held.release();
    await Promise.all(waiting);
    for (let i = 0; i < 10; i += 1) await one.locks.withLock('places', note);
    tokens.slice(1).forEach((token, i) => {
      const before = tokens[i] ?? 0;
      expect(token).toBeGreaterThan(before);
      expect(token % 64).toBe((before + 1) % 64);
    });
  });

  it('never has fencing tokens ahead of the clock, so that they grow across FLUSHALL too', async () => {
    for (let i = 0; i < 50; i += 1) {
      const before = await one.locks.withLock('flushed', ({ fencingToken }) => fencingToken);
      const [seconds, microseconds] = (await one.redis.time()) as unknown as [number, number];
      expect(before).toBeLessThanOrEqual(Number(seconds) * 1e6 + Number(microseconds));
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
