import { Alarm } from '../redis/deadline.js';
import type { Instant } from '../redis/instant.js';
import type { Claim, ResourceKeys } from '../redis/lock-keys.js';
import { nameOf } from '../redis/tokens.js';
import type { AbortListeners } from './abort-listeners.js';
import type { Placed } from './bag.js';
import type { Inheritance } from './lease.js';

/** ms a place in the queue outlives its waiter's deadline at most; also how long one without a deadline lasts. */
export const LONGEST_PLACE = 24 * 3_600_000;

/** ms until a waiter that has its place asks again when Redis refused it for a reason that passes; doubled each time. */
const FIRST_PAUSE = 50;
const LAST_PAUSE = 1_000;

/** How long somebody is ready to wait, and how many may. */
export interface Patience {
  /** On the monotonic clock; Infinity: until aborted. */
  readonly until: number;
  readonly maxWaiters: number;
  readonly signal: AbortSignal | undefined;
  /** Goes on waiting while the application closes: its lock is needed by work that is to end. */
  readonly nested: boolean;
  /**
   * Whether it waits for one of several resources: then Redis has to grant it, since its lease begins when all are granted; and
   * it gives up nothing by itself.
   */
  readonly isPart: boolean;
  /** Whether its lease is renewed from the beginning. */
  readonly isRenewed: boolean;
}

/** A claim from when it is asked for until it is kept, or given up. */
export class PendingClaim implements Claim, Placed {
  place = -1;

  constructor(
    readonly token: string,
    readonly keys: readonly ResourceKeys[],
  ) {}
}

/** A claim that was granted, all of it. */
export class Granted {
  /**
   * @param fencingTokens in the order of the claim's keys
   * @param acquired when the request for it was sent
   */
  constructor(
    readonly claim: PendingClaim,
    readonly fencingTokens: readonly number[],
    readonly acquired: Instant,
    readonly inheritance?: Inheritance,
  ) {}
}

/** When somebody was not the owner yet. */
export interface Refused {
  readonly sent: Instant;
  readonly lastFencingToken: number;
  /** How often a connection had been lost by then. */
  readonly lostConnections: number;
}

/** One who waits for a single resource. */
export class Waiter implements Placed {
  place = -1;
  /** What messages and runs call it. */
  readonly name: string;
  readonly began = performance.now();
  ticket = '0';
  /** Whether an ask is under way, and whether another one is needed after it. */
  asking = false;
  askAgain = false;
  /** Once it is not 'waiting' any more, nothing that comes later changes it. */
  state: 'waiting' | 'granted' | 'gone' = 'waiting';
  retryAfter: number | undefined;
  /** When the last ask was sent that did not find it the owner, and the last fencing token that Redis knew of then. */
  refused: Refused | undefined;
  /** How often it was granted a lease that was over by then. */
  lateGrants = 0;
  /** Called once, when no ask of its is under way any more. */
  onAsked: (() => void) | undefined;
  /** Asks that Redis refused one after the other, for a reason that passes. */
  #refusals = 0;
  #deadline: Alarm | undefined;
  #retry: Alarm | undefined;
  #stopListening: (() => void) | undefined;

  constructor(
    readonly claim: PendingClaim,
    readonly ttl: number,
    readonly patience: Patience,
    readonly resolve: (granted: Granted) => void,
    readonly reject: (error: unknown) => void,
  ) {
    this.name = nameOf(claim.token);
  }

  get resource(): ResourceKeys {
    return this.claim.keys[0] as ResourceKeys; // of several, each has a waiter of its own
  }

  /** Until {@link forget}: calls back when its patience is over. */
  watchPatience(aborts: AbortListeners, isOver: (reason: 'timeout' | 'aborted') => void): void {
    const { until, signal } = this.patience;
    if (until < Infinity) {
      this.#deadline = new Alarm(() => isOver('timeout'));
      this.#deadline.set(until);
    }
    if (signal) {
      const onAbort = () => isOver('aborted');
      aborts.add(signal, onAbort);
      this.#stopListening = () => aborts.delete(signal, onAbort);
    }
  }

  /** Until {@link forget}: calls back after a pause, which is longer each time until {@link wasAnswered}. */
  askAfterPause(ask: () => void): void {
    this.#retry ??= new Alarm(ask);
    this.#retry.set(performance.now() + Math.min(FIRST_PAUSE * 2 ** this.#refusals, LAST_PAUSE));
    this.#refusals += 1;
  }

  wasAnswered(): void {
    this.#refusals = 0;
  }

  forget(): void {
    this.#deadline?.clear();
    this.#retry?.clear();
    this.#stopListening?.();
  }

  /** ms its place may be needed: until its deadline, and for the lease that may begin then. */
  get neededFor(): number {
    return Math.min(Math.max(0, this.patience.until - performance.now()) + this.ttl, LONGEST_PLACE);
  }
}
