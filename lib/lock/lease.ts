import { elapsedSince, Instant } from '../redis/instant.js';
import type { Claim, ResourceKeys } from '../redis/lock-keys.js';
import type { Placed } from './bag.js';
import type { PassedOn, Release } from '../redis/lock-replies.js';

const NONE: readonly string[] = [];

/** What is counted on of a ttl, for clocks that do not go alike. */
const DRIFT = 0.99;

/** Told once, when a lease was lost. */
type LossListener = (reason: string) => void;

export type LeaseState = 'held' | 'lost' | 'released';

/** What a lease begins with when it did not ask for it: from whoever had the lock before. */
export interface Inheritance {
  /** How many ms it lasts, from when. */
  readonly lasts: number;
  readonly measuredFrom: Instant;
  readonly predecessors: readonly string[];
  /** Where Redis knows another token as the owner until it has heard of this one. */
  readonly passedOn?: {
    /** When Redis was told, and what it answers. */
    readonly sent: Instant;
    readonly told: Promise<PassedOn>;
    /** The lease that came of it. */
    heir?: Lease;
  };
}

/** What a lease was taken for. Times are in ms. */
export interface LeaseTerms {
  /** When the request for it was sent. */
  readonly acquired: Instant;
  readonly ttl: number;
  /** Default: true. */
  readonly autoExtend?: boolean;
  /** Renewal stops after it. Default: Infinity. */
  readonly maxHold?: number;
  /** It is given up no sooner. Default: 0. */
  readonly minHold?: number;
  readonly inheritance?: Inheritance | undefined;
}

/** A lease as this process knows it. LeaseKeeper alone changes it. */
export class Lease implements Claim, Placed {
  place = -1;
  /** On the monotonic clock. */
  readonly began: number;
  state: LeaseState = 'held';
  /** ms it lasts from each renewal on. */
  ttl: number;
  /** ms it lasts from {@link measuredFrom}. */
  lasts: number;
  /** Taken before the request that began or renewed the lease was sent. */
  measuredFrom: Instant;
  /** Above 0, no renewal is sent: one between WATCH and EXEC would make Redis refuse the commit. */
  renewalPauses = 0;
  /** Called, once each, when renewals are not paused any more. */
  onResumed: (() => void)[] | undefined;
  /**
   * A commit is under way, or was, that gives the lease up: as soon as Redis has it, somebody else may hold the lock. So
   * nobody may count on the lease, while it is still to be known what became of it.
   */
  isLeaving = false;
  /** Settled when the renewal that is under way was answered, or will not be. */
  renewing: Promise<void> | undefined;
  /** When a renewal that is under way, or failed, may be tried again; on the monotonic clock. */
  retryAt = -Infinity;
  /** How often it was extended, or shortened to its minHold: Redis heeds no request that is older than the last of these. */
  terms = 0;
  /** The last extension that was asked for. */
  extended: Promise<void> | undefined;
  /**
   * None once Redis has heard of this lease. Before that: holders before it, the latest first, one of which Redis takes
   * for the owner; or its own token once more, as long as it has the lock provisionally.
   */
  predecessors: readonly string[];
  /** While Redis may not have heard of the lease: resolves when it has, or when that does not matter any more. */
  heard: Promise<void> | undefined;
  /** Its time is over, but for what may have been answered by now. */
  lastLook: NodeJS.Immediate | undefined;
  /** What its release came to, once that was begun. */
  released: Promise<Release> | undefined;
  /** How many commits are under way that need it: until they have ended, Redis has to decide who comes next. */
  relyingCommits = 0;
  /** How many commits were sent under it. */
  commits = 0;
  /** Settled when the last one in line has ended. */
  committing: Promise<void> | undefined;
  /** Why it was lost, if it was. */
  lossReason: string | undefined;
  #lossListeners: LossListener | Set<LossListener> | undefined;

  /** Both on the monotonic clock. */
  readonly #renewedUntil: number;
  readonly #heldUntil: number;

  constructor(
    readonly token: string,
    readonly keys: readonly ResourceKeys[],
    readonly fencingTokens: readonly number[],
    { acquired, ttl, autoExtend = true, maxHold = Infinity, minHold = 0, inheritance }: LeaseTerms,
  ) {
    this.ttl = ttl;
    this.lasts = inheritance?.lasts ?? ttl;
    this.measuredFrom = inheritance?.measuredFrom ?? acquired;
    this.predecessors = inheritance?.predecessors ?? NONE;
    this.#renewedUntil = autoExtend ? acquired.monotonic + maxHold : -Infinity;
    this.began = acquired.monotonic;
    this.#heldUntil = acquired.monotonic + minHold;
  }

  onLoss(listener: LossListener): void {
    const known = this.#lossListeners; // most leases have one
    if (known === undefined) this.#lossListeners = listener;
    else if (known instanceof Set) known.add(listener);
    else this.#lossListeners = new Set([known, listener]);
  }

  offLoss(listener: LossListener): void {
    const known = this.#lossListeners;
    if (known instanceof Set) known.delete(listener);
    else if (known === listener) this.#lossListeners = undefined;
  }

  tellLoss(reason: string): void {
    this.lossReason = reason;
    const known = this.#lossListeners;
    if (known instanceof Set) for (const listener of known) listener(reason);
    else known?.(reason);
  }

  /** Whether it was handed over elsewhere, and Redis has not renewed it yet. */
  get isProvisional(): boolean {
    return this.predecessors[0] === this.token;
  }

  get resources(): readonly string[] {
    return this.keys.map(({ resource }) => resource);
  }

  /** ms this process may still count on, less what clocks may drift: 1 % and 2 ms. 0 when lost or released. */
  get remaining(): number {
    if (this.state !== 'held') return 0;
    return Math.max(0, this.lasts * DRIFT - 2 - elapsedSince(this.measuredFrom));
  }

  /** Since when a lease of that ttl would have to last to end when this one does. */
  measuredFor(ttl: number): Instant {
    const later = (this.lasts - ttl) * DRIFT;
    const { monotonic, wall } = this.measuredFrom;
    return new Instant(monotonic + later, wall + later);
  }

  /** ms until renewal is due, after a third of what it lasts; Infinity when there will be none. */
  get renewalDueIn(): number {
    return this.renewalPauses > 0 ? Infinity : this.renewalNeededIn;
  }

  /** The same, whether or not renewals are paused. */
  get renewalNeededIn(): number {
    const instant = performance.now();
    if (instant >= this.#renewedUntil || this.state !== 'held' || this.isLeaving) return Infinity;
    return Math.max(0, this.lasts / 3 - elapsedSince(this.measuredFrom), this.retryAt - instant);
  }

  /** ms it has to be held still, whatever its holder says. */
  get minHoldLeft(): number {
    return Math.max(0, this.#heldUntil - performance.now());
  }
}
