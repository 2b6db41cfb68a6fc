import { Injectable, Sse } from '@nestjs/common';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  Observable,
  Subject,
  firstValueFrom,
  from,
  interval,
  lastValueFrom,
  of,
  throwError,
  toArray,
} from 'rxjs';
import {
  LockConfigurationError,
  LockContext,
  LockKeyError,
  LockLostError,
  WithLock,
} from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

let askedInstead = 0;

@Injectable()
class Streams {
  readonly source = new Subject<number>();
  subscriptions = 0;

  constructor(readonly context: LockContext) {}

  @WithLock('stream:<id>')
  open(id: string, key: string): Observable<number> {
    this.subscriptions += 1;
    this.context.multi.set(key, id);
    return this.source;
  }

  @WithLock('values', { returns: 'observable' })
  values(key: string): Observable<string> {
    return new Observable((subscriber) => {
      // Still inside of the scope: it was subscribed to there.
      this.context.multi.set(key, 'committed');
      subscriber.next(this.context.lock.token);
      subscriber.complete();
    });
  }

  @Sse('events')
  @WithLock('sse')
  above(): Observable<{ data: string }> {
    return of({ data: this.context.lock.token });
  }

  @WithLock('fails')
  fails(error: Error, key: string): Observable<never> {
    this.context.multi.set(key, 'never');
    return throwError(() => error);
  }

  @WithLock('lost', { retries: 3 })
  lost(key: string, robbed: () => Promise<unknown>): Observable<number> {
    this.subscriptions += 1;
    this.context.multi.set(key, 'never');
    return from(robbed().then(() => 1));
  }

  @WithLock('promised', { returns: 'promise' })
  promised(): Observable<number> {
    return of(1);
  }

  @WithLock('subject')
  subject(): Subject<number> {
    const subject = new Subject<number>();
    void Promise.resolve().then(() => {
      subject.next(1);
      subject.complete();
    });
    return subject;
  }

  @WithLock('endless', { ttl: 300 })
  endless(): Observable<number> {
    return interval(5);
  }

  pulled = 0;

  @WithLock('pulled', { returns: 'observable' })
  numbers(): Observable<number> {
    const next = () => (this.pulled += 1);
    return from(
      (function* () {
        for (;;) yield next();
      })(),
    );
  }

  @WithLock('asked', { wait: 5_000, returns: 'observable', onBusy: () => (askedInstead += 1) })
  waits(): Observable<number> {
    return of(1);
  }

  @WithLock('iterable')
  async iterable(): Promise<AsyncIterable<number>> {
    return (async function* () {
      yield 1;
    })();
  }

  @WithLock('busy', { onBusy: 'skip' })
  skips(): Observable<number> {
    return of(1);
  }

  @WithLock('busy', { onBusy: (what: string) => `instead of ${what}` })
  replaced(_what: string): Observable<unknown> {
    return of(1);
  }

  @WithLock('busy', { onBusy: 'skip', minHold: 0 })
  async skipsQuietly(): Promise<string | undefined> {
    return 'ran';
  }

  @WithLock('outer', { onBusy: 'skip' })
  async needsAnother(inner: () => Promise<unknown>): Promise<unknown> {
    return inner();
  }
}

describe('an Observable method under a lock', () => {
  let one: LockApplication;
  let streams: Streams;

  beforeAll(async () => {
    one = await startLocks({}, { providers: [Streams] });
    streams = one.app.get(Streams);
  });
  afterAll(() => one.close());

  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);
  const data = (name: string) => one.redis.get(one.key(name));

  it('case 5: is locked from its subscription to its end, and committed before it completes', async () => {
    const before = streams.subscriptions;
    const stream = streams.open('1', one.key('stream'));
    expect(streams.subscriptions).toBe(before); // nothing happens before somebody subscribes
    const seen: unknown[] = [];
    const completed = new Promise<void>((resolve, reject) =>
      stream.subscribe({ next: (value) => seen.push(value), error: reject, complete: resolve }),
    );
    await eventually(() => streams.subscriptions === before + 1);
    expect(await owner('stream:1')).not.toBeNull();
    streams.source.next(1);
    streams.source.next(2);
    expect(await data('stream')).toBeNull();
    await expect(firstValueFrom(streams.open('1', one.key('stream')))).rejects.toMatchObject({
      reason: 'busy',
    });
    streams.source.complete();
    await completed;
    expect(seen).toEqual([1, 2]);
    expect(await data('stream')).toBe('1');
    expect(await owner('stream:1')).toBeNull();
  });

  it('runs what it subscribes to inside of the scope', async () => {
    const [token] = await lastValueFrom(streams.values(one.key('values')).pipe(toArray()));
    expect(token).toContain(':');
    expect(await data('values')).toBe('committed');
  });

  it('is told from a promise by @Sse', async () => {
    expect((await lastValueFrom(streams.above())).data).toContain(':');
  });

  it('case 5: frees the lock when it fails, with its own error and nothing committed', async () => {
    const own = new Error('mine');
    await expect(lastValueFrom(streams.fails(own, one.key('fails')))).rejects.toBe(own);
    expect([await data('fails'), await owner('fails')]).toEqual([null, null]);
  });

  it('case 5: frees the lock when it is unsubscribed from, with nothing committed', async () => {
    const subscription = streams.values(one.key('unsubscribed')).subscribe();
    subscription.unsubscribe(); // before the lock is there
    await eventually(async () => (await owner('values')) === null);

    const before = streams.subscriptions;
    const source = new Subject<number>();
    Object.assign(streams, { source });
    const open = streams.open('2', one.key('unsubscribed')).subscribe();
    await eventually(() => streams.subscriptions === before + 1);
    open.unsubscribe();
    await eventually(async () => (await owner('stream:2')) === null);
    expect(source.observed).toBe(false);
    expect(await data('unsubscribed')).toBeNull();
  });

  it('does not run again once it has emitted, and says that its lock was lost', async () => {
    const before = streams.subscriptions;
    const lost = lastValueFrom(streams.lost(one.key('lost'), () => one.redis.del(`${one.prefix}:{lost}`)));
    await expect(lost).rejects.toBeInstanceOf(LockLostError);
    expect([streams.subscriptions, await data('lost')]).toEqual([before + 1, null]);
  });

  it('gets its refusals as error notifications', async () => {
    const missing = streams.open(undefined as unknown as string, 'x');
    await expect(firstValueFrom(missing)).rejects.toBeInstanceOf(LockKeyError);
    const byHand = new Streams(one.context).open('1', 'x');
    await expect(firstValueFrom(byHand)).rejects.toBeInstanceOf(LockConfigurationError);
  });

  it('that was to return a promise is released and refused', async () => {
    const call = streams.promised() as unknown as Promise<unknown>;
    await expect(call).rejects.toThrow(/returns: 'observable'/);
    expect(await owner('promised')).toBeNull();
  });

  it('case 6: an async iterable is released and refused', async () => {
    await expect(streams.iterable()).rejects.toThrow(/async iterable/);
    expect(await owner('iterable')).toBeNull();
  });

  it('is told from a promise by its type, also a subclass of Observable', async () => {
    expect(await lastValueFrom(streams.subject())).toBe(1);
  });

  it('that never ends does so when its lock is lost', async () => {
    const lost = lastValueFrom(streams.endless());
    await eventually(async () => (await owner('endless')) !== null);
    await one.redis.del(`${one.prefix}:{endless}`);
    await expect(lost).rejects.toBeInstanceOf(LockLostError);
  });

  it('is not pulled from any more when nobody listens', async () => {
    expect(await firstValueFrom(streams.numbers())).toBe(1);
    expect(streams.pulled).toBeLessThanOrEqual(2);
    await eventually(async () => (await owner('pulled')) === null);
  });

  it('that is unsubscribed from while it waits asks nobody for something else', async () => {
    await using _lock = await one.locks.acquire('asked');
    const subscription = streams.waits().subscribe();
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{asked}`)) === 1);
    subscription.unsubscribe();
    await eventually(async () => (await one.redis.zcard(`${one.prefix}:queue:{asked}`)) === 0);
    expect(askedInstead).toBe(0);
  });

  it('onBusy: is skipped, or replaced by what a function says', async () => {
    await using _lock = await one.locks.acquire('busy');
    expect(await lastValueFrom(streams.skips().pipe(toArray()))).toEqual([]);
    expect(await lastValueFrom(streams.replaced('this'))).toBe('instead of this');
    expect(await streams.skipsQuietly()).toBeUndefined();
    await _lock.release();
    expect(await streams.skipsQuietly()).toBe('ran');
  });

  it('onBusy: hears of its own lock only', async () => {
    await using _lock = await one.locks.acquire('inner');
    const call = streams.needsAnother(() => one.locks.withLock('inner', () => 1));
    await expect(call).rejects.toMatchObject({ reason: 'busy', resources: ['inner'] });
  });
});
