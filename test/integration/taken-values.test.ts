import { Injectable, Sse } from '@nestjs/common';
import type { MessageEvent } from '@nestjs/common';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import {
  BehaviorSubject,
  NEVER,
  Observable,
  Subject,
  concat,
  defer,
  first,
  firstValueFrom,
  from,
  lastValueFrom,
  map,
  merge,
  of,
  race,
  switchMap,
  take,
  timer,
} from 'rxjs';
import { LockContext, LockLostError, LockTransactionError, WithLock } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

@Injectable()
class Tickets {
  stock = '';
  source = new Subject<string>();

  constructor(readonly context: LockContext) {}

  @WithLock('one:<kind>', { returns: 'observable', retries: 0 })
  one(kind: keyof typeof KINDS): Observable<string> {
    return KINDS[kind](async () => {
      this.context.multi.decr(this.stock);
      return 'ticket';
    });
  }

  @WithLock('refused', { returns: 'observable' })
  refused(): Observable<string> {
    return defer(async () => {
      try {
        this.context.multi.call('EXEC');
      } catch {
        // it dooms the commit all the same
      }
      return 'ticket';
    });
  }

  @WithLock('lost', { returns: 'observable', retries: 0 })
  lost(steal: () => Promise<unknown>): Observable<string> {
    return defer(async () => {
      await steal();
      return 'ticket';
    });
  }

  @WithLock('stream', { returns: 'observable', wait: 5_000 })
  stream(): Observable<string> {
    const { multi } = this.context; // values come from elsewhere
    return this.source.pipe(
      map((value) => {
        multi.rpush(this.stock, value);
        return value;
      }),
    );
  }

  @WithLock('steps', { returns: 'observable' })
  steps(): Observable<string> {
    const { multi } = this.context;
    return new Observable((subscriber) => {
      multi.rpush(this.stock, 'first');
      subscriber.next('first');
      multi.rpush(this.stock, 'half of the second');
    });
  }

  @WithLock('stream', { returns: 'observable' })
  inStream(): Observable<string> {
    return this.stream();
  }

  @Sse('events')
  @WithLock('stream')
  events(): Observable<MessageEvent> {
    return this.stream().pipe(map((data) => ({ data })));
  }
}

/** Sources of one value, by how they come to it. */
const KINDS = {
  defer: (work: () => Promise<string>) => defer(work),
  promise: (work: () => Promise<string>) => from(work()),
  of: (work: () => Promise<string>) => (void work(), of('ticket')),
  piped: (work: () => Promise<string>) => timer(1).pipe(switchMap(work), take(1)),
  several: (work: () => Promise<string>) => (void work(), of('ticket', 'another')),
  endless: (work: () => Promise<string>) => (void work(), new BehaviorSubject('ticket')),
  early: (work: () => Promise<string>) => concat(defer(work), NEVER),
};
const ENDS_AT_ONCE = ['defer', 'promise', 'of', 'piped'] as const;
const GOES_ON = ['several', 'endless', 'early'] as const;

const TAKERS: Record<string, (source: Observable<string>) => Promise<string>> = {
  firstValueFrom: (source) => firstValueFrom(source),
  lastValueFrom: (source) => lastValueFrom(source),
  'first()': (source) => lastValueFrom(source.pipe(first())),
  'take(1)': (source) => lastValueFrom(source.pipe(take(1))),
  'race()': (source) => firstValueFrom(race(source, NEVER)),
  'switchMap()': (source) => firstValueFrom(of(1).pipe(switchMap(() => source))),
  'merge()': (source) => firstValueFrom(merge(NEVER, source)),
};

describe('a value that is taken of an Observable under a lock', () => {
  let one: LockApplication;
  let tickets: Tickets;

  beforeAll(async () => {
    one = await startLocks({}, { providers: [Tickets] });
    tickets = one.app.get(Tickets);
    tickets.stock = one.key('stock');
  });
  beforeEach(async () => {
    await one.redis.del(tickets.stock);
    tickets.source = new Subject();
  });
  afterAll(() => one.close());

  const isFree = async (resource: string) => (await one.redis.exists(`${one.prefix}:{${resource}}`)) === 0;
  const list = () => one.redis.lrange(tickets.stock, 0, -1);

  describe.each(Object.keys(TAKERS))('by %s', (taker) => {
    const taken = (source: Observable<string>) => (TAKERS[taker] as (typeof TAKERS)[string])(source);

    it.each(ENDS_AT_ONCE)('is committed, and the lock free, when the caller has it: %s', async (kind) => {
      expect(await taken(tickets.one(kind))).toBe('ticket');
      expect(await one.redis.get(tickets.stock)).toBe('-1');
      expect(await isFree(`one:${kind}`)).toBe(true);
    });

    it('is not given out when its commit is refused: the caller has the error', async () => {
      await expect(taken(tickets.refused())).rejects.toBeInstanceOf(LockTransactionError);
      expect(await isFree('refused')).toBe(true);
    });

    it('is not given out when the lock was lost, even with nothing to commit', async () => {
      const steal = () => one.redis.del(`${one.prefix}:{lost}`);
      await expect(taken(tickets.lost(steal))).rejects.toBeInstanceOf(LockLostError);
    });
  });

  describe.each(Object.keys(TAKERS).filter((name) => name !== 'lastValueFrom'))('by %s', (taker) => {
    it.each(GOES_ON)('is a success where more could follow: it is committed, once: %s', async (kind) => {
      expect(await TAKERS[taker]?.(tickets.one(kind))).toBe('ticket');
      await eventually(() => isFree(`one:${kind}`));
      expect(await one.redis.get(tickets.stock)).toBe('-1');
    });
  });

  it('commits what a stream queued before the last value that was seen, when it is unsubscribed from', async () => {
    const seen: string[] = [];
    const subscription = tickets.stream().subscribe((value) => seen.push(value));
    await eventually(() => tickets.source.observed);
    tickets.source.next('a');
    tickets.source.next('b');
    await eventually(() => seen.length === 2);
    expect(await list()).toEqual([]); // all at once, at the end
    subscription.unsubscribe();
    await eventually(() => isFree('stream'));
    expect(await list()).toEqual(['a', 'b']);
    expect(tickets.source.observed).toBe(false);
  });

  it('does not commit half of the next step', async () => {
    expect(await firstValueFrom(tickets.steps())).toBe('first');
    await eventually(() => isFree('steps'));
    expect(await list()).toEqual(['first']);
  });

  it('commits nothing when it is unsubscribed from before any value', async () => {
    const subscription = tickets.stream().subscribe();
    await eventually(() => tickets.source.observed);
    subscription.unsubscribe();
    await eventually(() => isFree('stream'));
    expect(await list()).toEqual([]);
  });

  it('that switchMap() leaves for another one is committed if it had a value, and both take their turn', async () => {
    const seen: string[] = [];
    const trigger = new Subject<void>();
    const subscription = trigger
      .pipe(switchMap(() => tickets.stream()))
      .subscribe((value) => seen.push(value));
    trigger.next();
    await eventually(() => tickets.source.observed);
    tickets.source.next('of the first');
    await eventually(() => seen.length === 1);
    trigger.next(); // leaves after a value
    await eventually(() => tickets.source.observed);
    trigger.next(); // leaves before any
    await eventually(() => tickets.source.observed);
    tickets.source.next('of the third');
    await eventually(() => seen.length === 2);
    subscription.unsubscribe();
    await eventually(() => isFree('stream'));
    expect(seen).toEqual(['of the first', 'of the third']);
    expect(await list()).toEqual(seen);
  });

  it('loses a race() without a trace', async () => {
    expect(await firstValueFrom(race(tickets.stream(), timer(20).pipe(map(() => 'faster'))))).toBe('faster');
    await eventually(() => isFree('stream'));
    expect(await list()).toEqual([]);
  });

  it('of a stream of events is committed when the client leaves', async () => {
    const seen: unknown[] = [];
    const subscription = tickets.events().subscribe((event) => seen.push(event.data));
    await eventually(() => tickets.source.observed);
    tickets.source.next('event');
    await eventually(() => seen.length === 1);
    subscription.unsubscribe();
    await eventually(() => isFree('stream'));
    expect(await list()).toEqual(['event']);
  });

  it('inside of a scope that has the lock is committed with that scope', async () => {
    await one.locks.withLock('stream', async () => {
      const taken = firstValueFrom(tickets.inStream());
      await eventually(() => tickets.source.observed);
      tickets.source.next('joined');
      expect(await taken).toBe('joined');
      expect(await list()).toEqual([]);
    });
    expect(await list()).toEqual(['joined']);
  });
});
