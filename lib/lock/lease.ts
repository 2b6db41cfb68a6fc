import type { Claim } from '../redis/lock-store.js';
import type { ResourceKeys } from '../redis/lock-keys.js';

/** An instant on both clocks: the monotonic one stands still while a machine sleeps, the wall clock can jump. */
export interface Instant {
  readonly monotonic: number;
  readonly wall: number;
}

export function now(): Instant {
  return { monotonic: performance.now(), wall: Date.now() };
}

/** ms since the instant; the larger of the two clocks' words, so that a lease is never believed in for too long. */
export function elapsedSince(instant: Instant): number {
  return Math.max(performance.now() - instant.monotonic, Date.now() - instant.wall);
}

export type LeaseState = 'held' | 'lost' | 'released';

/** A lease as this process knows it. LeaseKeeper alone changes it. */
export class Lease implements Claim {
  state: LeaseState = 'held';
  /** ms the lease lasts from {@link measuredFrom}. */
  ttl: number;
  /** Taken before the request that began or renewed the lease was sent. */
  measuredFrom: Instant;
  /** Above 0, no renewal is sent: one between WATCH and EXEC would make Redis refuse the commit. */
  renewalPauses = 0;
  /** How many commits were sent under it. */
  commits = 0;
  /** Called once, when the lease was lost. */
  onLost: ((reason: string) => void) | undefined;

  constructor(
    readonly token: string,
    readonly keys: readonly ResourceKeys[],
    readonly fencingTokens: readonly number[],
    ttl: number,
    /** When renewal stops, on the monotonic clock; -Infinity: never renewed. */
    readonly renewUntil: number,
    acquired: Instant,
  ) {
    this.ttl = ttl;
    this.measuredFrom = acquired;
  }

  get resources(): readonly string[] {
    return this.keys.map(({ resource }) => resource);
  }

  /** ms this process may still count on, less what clocks may drift: 1 % and 2 ms. 0 when lost or released. */
  get remaining(): number {
    if (this.state !== 'held') return 0;
    return Math.max(0, this.ttl * 0.99 - 2 - elapsedSince(this.measuredFrom));
  }

  /** ms until renewal is due, after a third of the ttl; Infinity when there will be none. */
  get renewalDueIn(): number {
    if (this.state !== 'held' || this.renewalPauses > 0 || performance.now() >= this.renewUntil)
      return Infinity;
    return Math.max(0, this.ttl / 3 - elapsedSince(this.measuredFrom));
  }
}
