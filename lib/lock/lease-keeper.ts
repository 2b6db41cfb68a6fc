import { LockLostError } from '../errors/lock.errors.js';
import { Alarm, MAX_TIMER_DELAY, pause } from '../redis/deadline.js';
import type { LockStore } from '../redis/lock-store.js';
import type { Release } from '../redis/lock-replies.js';
import { elapsedSince, now } from '../redis/instant.js';
import type { Instant } from '../redis/instant.js';
import { Bag } from './bag.js';
import type { Lease } from './lease.js';
import type { RecentTimes } from './recent-times.js';

/** Renewals due within this part of their ttl go along with the ones that are due now. */
const BATCH_WINDOW = 1 / 30;
/** Leases renewed in one round trip: more would hold up Redis for others. */
const BATCH_SIZE = 1_000;
/** ms until a renewal that failed is tried again. */
const RETRY_PAUSE = 50;
const OVER = 'its time was over before it could be renewed';

/**
 * Keeps the leases of one service: one timer for all of them, renewals in batches. A renewal that fails is tried
 * again until the lease's end; then, or as soon as Redis says that it has another owner, the lease is lost.
 */
export class LeaseKeeper {
  readonly #store: LockStore;
  readonly #times: RecentTimes;
  readonly #leases = new Bag<Lease>();
  #timer: NodeJS.Timeout | undefined;
  #timerDueAt = Infinity;
  /** Released by their holders, but not before their minHold is over. */
  readonly #heldBack = new Map<Lease, Alarm>();

  /** Asked first when a lease is given up, with the ms it had left: somebody here may take it over at once. */
  onRelease: (lease: Lease, remaining: number) => Promise<Release> | undefined = () => undefined;

  constructor(store: LockStore, times: RecentTimes) {
    this.#store = store;
    this.#times = times;
  }

  /** The leases held at the moment. */
  get leases(): Iterable<Lease> {
    return this.#leases;
  }

  /** Whether a lease of that token, on the resource of that key, is held, or held back for its minHold. */
  has(token: string, owner?: string): boolean {
    const isIt = (lease: Lease) =>
      lease.token === token && (owner === undefined || lease.keys.some((each) => each.owner === owner));
    return this.#leases.find(isIt) !== undefined || [...this.#heldBack.keys()].some(isIt);
  }

  /** Takes the lease into keeping, until it is released or lost. */
  keep(lease: Lease): void {
    this.#leases.add(lease);
    // Before its holder can write anything, or keep this process busy: what it has is short.
    if (lease.isProvisional) void this.#renew([lease]);
    this.#wakeIn(Math.min(lease.renewalDueIn, lease.remaining));
  }

  /**
   * Gives the lease up in Redis. From the call on it counts as released here. Before its minHold is over, it is only
   * shortened to that, and given up then.
   *
   * @throws LockUnavailableError when Redis could not be asked; the lock is then given back as soon as it answers.
   */
  release(lease: Lease): Promise<Release> {
    if (lease.state !== 'held') return Promise.resolve('not ours');
    const { minHoldLeft, remaining } = lease;
    this.markReleased(lease);
    if (minHoldLeft > 0) lease.released = this.#releaseLater(lease, minHoldLeft);
    else lease.released = this.onRelease(lease, remaining) ?? this.#release(lease);
    return lease.released;
  }

  #release(lease: Lease): Promise<Release> {
    return this.#store.release(lease).catch((error: unknown) => {
      this.#store.giveBack(lease, lease.ttl);
      throw error;
    });
  }

  /**
   * Whatever names the token of a lease alone has to wait for this.
   *
   * @throws LockUnavailableError when Redis could not be told of it within commandTimeout
   */
  async untilHeard({ heard, keys }: Lease): Promise<void> {
    if (heard) await this.#store.bounded(heard, keys);
  }

  /** A lease that was not renewed until now, since Redis had not heard of it, has its own ttl from then on. */
  begin(lease: Lease, sent: Instant): void {
    this.#restart(lease, lease.ttl, sent);
    this.resumeRenewal(lease);
  }

  /** For a lease that was given up in Redis by other means, by a commit. */
  markReleased(lease: Lease): void {
    this.#end(lease, 'released');
  }

  /**
   * Makes the lease last `ttl` ms from now, and so at every renewal from here on.
   *
   * @throws LockLostError when it is not held any more
   * @throws LockUnavailableError
   */
  extend(lease: Lease, ttl: number): Promise<void> {
    // One after the other: what Redis did last has to be what is believed here. The one before has told its caller.
    const before = lease.extended?.catch(() => undefined);
    const extended = before ? before.then(() => this.#extend(lease, ttl)) : this.#extend(lease, ttl);
    lease.extended = extended;
    return extended;
  }

  async #extend(lease: Lease, ttl: number): Promise<void> {
    await this.untilHeard(lease);
    if (lease.remaining <= 0) await this.upToDate(lease);
    const sent = now();
    if (lease.remaining > 0) {
      // A shorter lease counts from now on, whatever becomes of the reply; and no renewal asks for more than an extension
      // that Redis may read after it.
      if (ttl < lease.remaining) this.#restart(lease, ttl, sent);
      else if (ttl < lease.ttl) lease.ttl = ttl;
      this.pauseRenewal(lease); // one with the old ttl must not overtake
      try {
        lease.terms += 1;
        const renewal = await this.#store.extend(lease, ttl, lease.terms);
        if (renewal === 'lost') this.lose(lease, 'it has another owner, or none');
        if (renewal === 'renewed' && lease.state === 'held') return this.#restart(lease, ttl, sent);
      } finally {
        this.resumeRenewal(lease);
      }
    }
    const reason = lease.state === 'released' ? 'it was released before' : 'it is not held any more';
    throw new LockLostError({ resources: lease.resources, reason });
  }

  /** Stops renewing the lease until {@link resumeRenewal}; pauses add up. */
  pauseRenewal(lease: Lease): void {
    lease.renewalPauses += 1;
  }

  resumeRenewal(lease: Lease): void {
    lease.renewalPauses -= 1;
    if (lease.renewalPauses > 0) return;
    resumed(lease); // first: those who wait do not give others the time to pause renewals again
    if (lease.state === 'held') this.#wakeIn(Math.min(lease.renewalDueIn, lease.remaining));
  }

  /**
   * Tells the holder that the lease is gone, and gives back what Redis may still hold for it: a renewal whose reply
   * was lost, another resource of the same lock. A lease that was released cannot be lost any more.
   */
  lose(lease: Lease, reason: string): void {
    const wasHeld = lease.state === 'held';
    this.tellLost(lease, reason);
    if (wasHeld) this.#store.giveBack(lease, lease.ttl);
  }

  /**
   * Tells the holder that the lease is gone. For a lease that is given up in Redis by other means: the caller has to tell
   * of it before Redis can hear of it.
   */
  tellLost(lease: Lease, reason: string): void {
    if (!this.#end(lease, 'lost')) return;
    lease.tellLoss(reason);
  }

  /** @returns whether it was held until now */
  #end(lease: Lease, state: 'lost' | 'released'): boolean {
    this.#leases.delete(lease);
    if (lease.state !== 'held') return false;
    lease.state = state;
    if (state === 'released') this.#times.addHold(performance.now() - lease.began);
    resumed(lease);
    return true;
  }

  /**
   * Loses a lease whose time is over. One whose answer may lie in a socket is lost a moment later, unless that renews it: a
   * process that stood still hears of its timers first.
   */
  loseIfOver(lease: Lease): void {
    if (lease.state !== 'held' || lease.remaining > 0 || lease.lastLook) return;
    if (!lease.renewing && !lease.heard) return this.lose(lease, OVER);
    // In the turn after this one: what has arrived is read in between.
    lease.lastLook = setImmediate(() => {
      lease.lastLook = setImmediate(() => {
        lease.lastLook = undefined;
        if (lease.state === 'held' && lease.remaining <= 0) this.lose(lease, OVER);
      });
    });
  }

  /**
   * For the caller that is to use the lease now: resolves when a renewal has been answered that is due or under way, after
   * those have ended that have renewals paused. Undefined when there is none to wait for. Never rejects.
   */
  upToDate(lease: Lease): Promise<void> | undefined {
    if (lease.renewalNeededIn <= 0) {
      return lease.renewalPauses > 0 ? this.#upToDateWhenResumed(lease) : this.#renew([lease]);
    }
    if (!lease.renewing || lease.state !== 'held') return undefined;
    // One that was handed over a moment ago is renewed early, and needs no renewal yet.
    return lease.isProvisional && lease.remaining > 0 ? undefined : lease.renewing;
  }

  async #upToDateWhenResumed(lease: Lease): Promise<void> {
    await new Promise<void>((resolve) => (lease.onResumed ??= []).push(resolve));
    await this.upToDate(lease);
  }

  /** Takes the lease away from a holder that did not end in time, and tells it. A minHold is kept. Never rejects. */
  async revoke(lease: Lease): Promise<void> {
    if (lease.minHoldLeft === 0) this.lose(lease, 'the application was closed');
    else await this.release(lease).catch(() => undefined); // it ends by itself
  }

  get isClosed(): boolean {
    return this.#timerDueAt === -Infinity;
  }

  /** Ends the timers. Leases still held, or held back, run out by themselves. */
  close(): void {
    clearTimeout(this.#timer);
    for (const alarm of this.#heldBack.values()) alarm.clear();
    this.#heldBack.clear();
    this.#timerDueAt = -Infinity; // no later wake-up is ever earlier than this
  }

  async #releaseLater(lease: Lease, ms: number): Promise<Release> {
    const alarm = new Alarm(() => {
      this.#heldBack.delete(lease);
      this.#store.giveBack(lease, Math.max(ms, lease.ttl));
    });
    this.#heldBack.set(lease, alarm);
    alarm.set(performance.now() + ms);
    lease.terms += 1;
    try {
      return await this.#keepFor(lease);
    } catch {
      void this.#keepLater(lease); // the caller need not wait for that
      return 'unclear';
    }
  }

  /** Makes the lease last to the end of its minHold, should this process die: its ttl may be longer, or shorter. */
  async #keepFor(lease: Lease): Promise<Release> {
    await this.untilHeard(lease);
    const kept = await this.#store.extend(lease, Math.ceil(lease.minHoldLeft), lease.terms);
    return kept === 'lost' ? 'not ours' : 'released';
  }

  /** Until Redis has answered, or the minHold is over. Never rejects. */
  async #keepLater(lease: Lease): Promise<void> {
    while (this.#heldBack.has(lease)) {
      await pause(RETRY_PAUSE);
      if (!this.#heldBack.has(lease) || lease.minHoldLeft <= 0) return;
      const isAnswered = await this.#keepFor(lease).then(
        () => true,
        () => false,
      );
      if (isAnswered) return;
    }
  }

  #restart(lease: Lease, ttl: number, measuredFrom: Instant): void {
    lease.ttl = ttl;
    lease.lasts = ttl;
    lease.measuredFrom = measuredFrom;
    lease.retryAt = -Infinity;
    this.#wakeIn(Math.min(lease.renewalDueIn, lease.remaining));
  }

  #wakeIn(ms: number): void {
    const dueAt = performance.now() + ms;
    if (dueAt >= this.#timerDueAt || ms === Infinity) return;
    clearTimeout(this.#timer);
    this.#timerDueAt = dueAt;
    this.#timer = setTimeout(() => this.#wake(), Math.min(ms, MAX_TIMER_DELAY));
    this.#timer.unref();
  }

  /** Ends the leases that are over, renews those that are due, and sleeps until the next one is. */
  #wake(): void {
    this.#timerDueAt = Infinity;
    const due: Lease[] = [];
    let next = Infinity;
    for (const lease of this.#leases) {
      const { remaining, renewalDueIn } = lease;
      if (remaining <= 0) {
        this.loseIfOver(lease);
      } else {
        const isDue = renewalDueIn <= lease.ttl * BATCH_WINDOW;
        if (isDue) due.push(lease);
        next = Math.min(next, remaining, isDue ? Infinity : renewalDueIn);
      }
    }
    this.#wakeIn(next);
    if (due.length > 0) void this.#renew(due);
  }

  /** Never rejects: what fails here is tried again by the next wake-up, and ends with the lease at the latest. */
  #renew(due: readonly Lease[]): Promise<void> {
    const renewing = this.#renewAll(due).finally(() => {
      for (const lease of due) if (lease.renewing === renewing) lease.renewing = undefined;
    });
    for (const lease of due) lease.renewing = renewing;
    return renewing;
  }

  async #renewAll(due: readonly Lease[]): Promise<void> {
    // A reply that is missing must not use up the time in which another try could save the lease. A late one counts.
    const patience = Math.min(...due.map(({ lasts }) => lasts)) / 3;
    // Until then none of them is due again, while others may be.
    for (const lease of due) lease.retryAt = performance.now() + patience + RETRY_PAUSE;
    try {
      for (let first = 0; first < due.length; first += BATCH_SIZE) {
        const batch = due.slice(first, first + BATCH_SIZE).filter((lease) => lease.renewalDueIn < Infinity);
        if (batch.length > 0) await this.#renewBatch(batch, patience);
      }
    } finally {
      this.#wakeIn(this.#nextRenewal());
    }
  }

  async #renewBatch(batch: readonly Lease[], patience: number): Promise<void> {
    const sent = now();
    const asked = batch.map((lease) => {
      const { token, keys, ttl, terms } = lease;
      return { lease, token, keys, ttl, terms };
    });
    await this.#store
      .renew(
        asked,
        ({ lease, ttl, terms }, renewal) => {
          // Overtaken by the commit that gives it up, which finds out by itself.
          if (renewal === 'lost' && !lease.isLeaving) this.lose(lease, 'it has another owner, or none');
          // After an extension, Redis may have read this one too late to heed it.
          if (renewal !== 'renewed' || lease.state !== 'held' || lease.terms !== terms) return;
          lease.predecessors = [];
          if (elapsedSince(sent) < elapsedSince(lease.measuredFrom)) {
            lease.measuredFrom = sent;
            lease.lasts = ttl;
          }
          lease.retryAt = -Infinity;
        },
        patience,
      )
      .catch(() => {
        for (const lease of batch) lease.retryAt = performance.now() + RETRY_PAUSE;
      });
  }

  #nextRenewal(): number {
    let next = Infinity;
    for (const { renewalDueIn, remaining } of this.#leases) next = Math.min(next, renewalDueIn, remaining);
    return next;
  }
}

/** Tells those who wait for a renewal that is held up: now it can be sent, or there will be none. */
function resumed(lease: Lease): void {
  const listeners = lease.onResumed ?? [];
  lease.onResumed = undefined;
  for (const listener of listeners) listener();
}
