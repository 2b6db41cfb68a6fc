import { getEventListeners } from 'node:events';
import { Injectable } from '@nestjs/common';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { lastValueFrom, of } from 'rxjs';
import type { Observable } from 'rxjs';
import { WithLock } from '../../lib/index.js';
import type { LockNotAcquiredError } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { closeAll, startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

const given = new AbortController();

@Injectable()
class Streams {
  @WithLock('given', { wait: 20_000, returns: 'observable', signal: given.signal })
  stream(): Observable<number> {
    return of(1);
  }
}

describe('a caller that cannot have a lock', () => {
  let one: LockApplication;
  let other: LockApplication;

  beforeAll(async () => {
    one = await startLocks({ ttl: 20_000 }, { providers: [Streams] });
    other = await startLocks({ keyPrefix: one.prefix, ttl: 20_000 });
  });
  afterAll(() => closeAll(one, other));

  const waiters = (resource: string) => one.redis.zcard(`${one.prefix}:queue:{${resource}}`);
  const retryAfter = async (from: LockApplication, wait = 0) => {
    const refusal = await from.locks.acquire('busy', { wait }).catch((error: unknown) => error);
    return (refusal as LockNotAcquiredError).retryAfter ?? 0;
  };

  it('hears when to try again by what it took lately, and never by the length of a lease', async () => {
    const held = await other.locks.acquire('busy');
    const unknown = [await retryAfter(one), await retryAfter(one, 5)];
    for (let i = 0; i < 30; i += 1) await (await one.locks.acquire('quick')).release();
    const afterQuickHolds = await retryAfter(one);
    await held.release();
    const brief = await other.locks.acquire('busy', { ttl: 50, autoExtend: false });
    const almostFree = await retryAfter(other);
    await brief.release();
    expect(unknown).toEqual([1_000, 1_000]);
    expect(afterQuickHolds).toBeGreaterThan(0);
    expect(afterQuickHolds).toBeLessThan(1_000);
    expect(almostFree).toBeLessThanOrEqual(50);
  });

  it('leaves one listener on a signal that many wait with, and none when they have ended', async () => {
    const shared = new AbortController();
    const listeners = () => getEventListeners(shared.signal, 'abort').length;
    const held = await other.locks.acquire('shared');
    const waiting = Array.from({ length: 30 }, (_, i) =>
      one.locks.acquire('shared', { wait: i < 10 ? 30 : 20_000, signal: shared.signal }).then(
        (lock) => lock.release().then(() => 'granted'),
        (error: LockNotAcquiredError) => error.reason,
      ),
    );
    await eventually(async () => (await waiters('shared')) === 20); // the impatient ones have gone
    expect(listeners()).toBe(1);
    await held.release();
    expect(new Set(await Promise.all(waiting))).toEqual(new Set(['timeout', 'granted']));
    expect(listeners()).toBe(0);

    const again = await other.locks.acquire('shared');
    const aborted = Array.from({ length: 20 }, () =>
      one.locks.acquire('shared', { wait: 20_000, signal: shared.signal }).catch((error: unknown) => error),
    );
    await eventually(async () => (await waiters('shared')) === 20);
    shared.abort(new Error('enough'));
    for (const error of await Promise.all(aborted)) {
      expect(error).toMatchObject({ reason: 'aborted', cause: shared.signal.reason });
    }
    expect([listeners(), await waiters('shared')]).toEqual([0, 0]);
    await again.release();
  });

  it('stops to wait for a decorated Observable when the signal of the decorator is aborted, with one listener for all', async () => {
    const held = await other.locks.acquire('given');
    const calls = Array.from({ length: 20 }, () =>
      lastValueFrom(one.app.get(Streams).stream()).catch((error: unknown) => error),
    );
    await eventually(async () => (await waiters('given')) === 20);
    expect(getEventListeners(given.signal, 'abort')).toHaveLength(1);
    given.abort(new Error('why'));
    for (const error of await Promise.all(calls)) {
      expect(error).toMatchObject({ reason: 'aborted', cause: given.signal.reason });
    }
    expect([getEventListeners(given.signal, 'abort').length, await waiters('given')]).toEqual([0, 0]);
    await held.release();
  });

  it('may give the signal of its lock to as many listeners as it likes, and Node warns of none', async () => {
    const warnings: string[] = [];
    const note = (warning: Error) => void warnings.push(warning.message);
    process.on('warning', note);
    await one.locks.withLock('listened to', async ({ signal }) => {
      for (let i = 0; i < 30; i += 1) signal.addEventListener('abort', () => undefined);
      await new Promise((resolve) => setImmediate(resolve)); // after which Node has warned
    });
    process.off('warning', note);
    expect(warnings).toEqual([]);
  });
});
