import { pause, within } from '../redis/deadline.js';
import { elapsedSince, Instant, now } from '../redis/instant.js';
import type { LockStore } from '../redis/lock-store.js';
import type { PassedOn, Release } from '../redis/lock-replies.js';
import { MAX_UNHEARD, PROVISIONAL_TTL } from '../redis/script-parts.js';
import type { Inheritance, Lease } from './lease.js';
import type { LeaseKeeper } from './lease-keeper.js';
import { Granted } from './waiter.js';
import type { Waiter } from './waiter.js';
import type { WaitingRoom } from './waiting-room.js';

/** ms until Redis is told again of a lock that was passed on. */
const RETRY_PAUSE = 50;

/**
 * Has waiters begin without asking Redis, as soon as it is certain that nobody else can have the lock. See docs/waiting.md.
 *
 * - As long as the lease of a holder of this service lasts. So when Redis has said that the next one in line is a waiter of
 *   this service, it begins under what is left of that lease, and has its own as soon as Redis has heard of it.
 * - When another process has handed the lock over to a waiter, for as long as such a grant lasts that nobody has come for.
 */
export class Succession {
  readonly #store: LockStore;
  readonly #room: WaitingRoom;
  readonly #keeper: LeaseKeeper;

  constructor(store: LockStore, room: WaitingRoom, keeper: LeaseKeeper) {
    this.#store = store;
    this.#room = room;
    this.#keeper = keeper;
    keeper.onRelease = (lease, remaining) => this.#release(lease, remaining);
    room.onHandedOver = (waiter, fencingToken, after) => this.#takeOver(waiter, fencingToken, after);
  }

  /**
   * Has to be called for each lease that was passed on, when it begins: tells Redis of it until Redis has heard.
   * Never rejects: what fails is tried again, and ends with the lease at the latest.
   */
  async follow(lease: Lease, passedOn: NonNullable<Inheritance['passedOn']>): Promise<void> {
    passedOn.heir = lease;
    this.#keeper.pauseRenewal(lease); // Redis would not know the token
    let stop = () => undefined as void;
    lease.heard = new Promise((resolve) => (stop = resolve));
    const answer = await this.#tell(lease, passedOn.told);
    if (answer) this.#heard(lease, answer, passedOn.sent);
    lease.heard = undefined;
    stop();
  }

  /** @returns undefined when the lease has ended before Redis had heard of it */
  async #tell(lease: Lease, first: Promise<PassedOn>): Promise<PassedOn | undefined> {
    for (let told = first; ; told = this.#store.passOn(lease)) {
      // An answer that is missing must not use up the time in which another try could save the lease.
      const answer = await within(Math.min(lease.ttl, lease.remaining) / 3, told).catch(() => undefined);
      if (answer) return answer;
      await pause(RETRY_PAUSE);
      // A release names all tokens there are, unless it is put off by a minHold: then the keeper still has the lease.
      if (!this.#keeper.has(lease.token) || (lease.state === 'held' && lease.remaining <= 0))
        return undefined;
    }
  }

  #heard(lease: Lease, { release, run }: PassedOn, sent: Instant): void {
    const [keys] = lease.keys;
    if (keys) this.#room.runs(keys.owner, run);
    if (release === 'released') lease.predecessors = [];
    if (lease.state !== 'held') return;
    if (release !== 'released') return this.#keeper.lose(lease, 'the holder before it had lost it');
    // From the first request on, whichever it was that Redis acted upon.
    this.#keeper.begin(lease, sent);
  }

  /** @returns undefined when nobody can begin at once: then Redis is to be asked who is next */
  #release(lease: Lease, remaining: number): Promise<Release> | undefined {
    const [keys, ...others] = lease.keys;
    if (!keys || others.length > 0 || this.#store.confirmsGrants) return undefined;
    if (lease.predecessors.length >= MAX_UNHEARD) return undefined;
    const heir = this.#room.nextInLine(keys.owner);
    // A commit that is under way is first of all Redis' matter.
    if (!heir || remaining < enoughFor(heir) || lease.relyingCommits > 0) return undefined;
    return this.#passOn(lease, heir);
  }

  /** @throws LockUnavailableError when Redis could not be told; the heir goes on trying */
  async #passOn(lease: Lease, heir: Waiter): Promise<Release> {
    const predecessors = [lease.token, ...lease.predecessors];
    const fencingToken = (lease.fencingTokens[0] ?? 0) + 1;
    const sent = now();
    const told = this.#store.passOn({ ...heir.claim, predecessors, fencingTokens: [fencingToken] });
    // Until Redis has answered, the shorter one of the two leases counts.
    const measuredFrom = earlier(lease.measuredFor(heir.ttl), sent);
    const passedOn: Inheritance['passedOn'] = { sent, told };
    const inheritance = { measuredFrom, lasts: heir.ttl, predecessors, passedOn };
    this.#room.begin(heir, new Granted(heir.claim, [fencingToken], sent, inheritance));
    const { release } = await told;
    if (release === 'released') return release;
    // Where this process has given the lock up again before Redis had heard of it, that named this token as well.
    const { heir: next } = passedOn;
    if (next?.released) return next.released;
    return next?.state === 'held' ? release : 'unclear';
  }

  /**
   * Another process has handed the lock over to the waiter after that instant. The grant is provisional, but Redis has it
   * as the owner: what is left of that is a lease like any other, which the keeper renews at once.
   *
   * @returns whether enough of it is left to begin
   */
  #takeOver(waiter: Waiter, fencingToken: number, after: Instant): boolean {
    const { claim, ttl, patience } = waiter;
    const lasts = Math.min(ttl, PROVISIONAL_TTL);
    const left = lasts - elapsedSince(after);
    if (!patience.isRenewed || this.#store.confirmsGrants || left < enoughFor(waiter)) return false;
    // A release that comes before the first renewal has to look at what the hand-over has left: it names the token twice.
    const inheritance = { measuredFrom: after, lasts, predecessors: [claim.token] };
    this.#room.begin(waiter, new Granted(claim, [fencingToken], now(), inheritance));
    return true;
  }
}

/** ms of a lease that a waiter can begin with: it must not be lost because Redis takes its time. */
function enoughFor({ ttl, patience }: Waiter): number {
  return (patience.isRenewed ? Math.min(ttl, PROVISIONAL_TTL) : ttl) / 2;
}

function earlier(one: Instant, other: Instant): Instant {
  return new Instant(Math.min(one.monotonic, other.monotonic), Math.min(one.wall, other.wall));
}
