import { LockNotAcquiredError } from '../errors/lock.errors.js';
import { now } from '../redis/instant.js';
import { resourcesOf } from '../redis/lock-keys.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import type { LockStore } from '../redis/lock-store.js';
import { Bag } from './bag.js';
import { Lease } from './lease.js';
import type { LeaseKeeper } from './lease-keeper.js';
import type { RecentTimes } from './recent-times.js';
import { Granted, PendingClaim } from './waiter.js';
import type { Patience } from './waiter.js';
import type { WaitingRoom } from './waiting-room.js';

/** Takes resources all or none: at once, or by waiting in line for as long as somebody is ready to. */
export class Acquirer {
  readonly #store: LockStore;
  readonly #room: WaitingRoom;
  readonly #keeper: LeaseKeeper;
  readonly #newToken: (ttl: number, waits: boolean) => string;
  readonly #times: RecentTimes;
  /** What was asked for, until {@link end} is told of it. */
  readonly #pending = new Bag<PendingClaim>();

  /** @param newToken a token for a lease of that ttl (ms); waits: that may get in line */
  constructor(
    store: LockStore,
    room: WaitingRoom,
    keeper: LeaseKeeper,
    times: RecentTimes,
    newToken: (ttl: number, waits: boolean) => string,
  ) {
    this.#times = times;
    this.#store = store;
    this.#room = room;
    this.#keeper = keeper;
    this.#newToken = newToken;
  }

  /** @param owner key of a resource that the claim is about */
  isPending(token: string, owner: string): boolean {
    const isIt = (claim: PendingClaim) =>
      claim.token === token && claim.keys.some((keys) => keys.owner === owner);
    return this.#pending.find(isIt) !== undefined;
  }

  /** A new claim, pending until {@link end} is told of it: somebody else keeps what it has from then on, or nobody. */
  begin(keys: readonly ResourceKeys[], ttl: number, waits: boolean): PendingClaim {
    const claim = new PendingClaim(this.#newToken(ttl, waits), keys);
    this.#pending.add(claim);
    return claim;
  }

  end(claim: PendingClaim): void {
    this.#pending.delete(claim);
  }

  /**
   * @param patience undefined: does not wait
   * @returns what was granted, for this claim or for one in place of it, which is pending as well
   * @throws LockNotAcquiredError, LockUnavailableError
   */
  acquire(claim: PendingClaim, ttl: number, patience?: Patience): Promise<Granted> {
    if (patience === undefined || claim.keys.length > 1) return this.#acquireAll(claim, ttl, patience);
    return this.#room.wait(claim, ttl, patience);
  }

  async #acquireAll(claim: PendingClaim, ttl: number, patience?: Patience): Promise<Granted> {
    const { keys } = claim;
    const acquired = now();
    const reply = await this.#store.acquire(claim, ttl);
    if (reply.granted) return new Granted(claim, reply.fencingTokens, acquired);
    if (patience !== undefined) return this.#gather(keys, ttl, { ...patience, isPart: true });
    const retryAfter = this.#times.retryAfter(reply.retryAfter);
    throw new LockNotAcquiredError('busy', { resources: resourcesOf(keys), retryAfter });
  }

  /**
   * Several resources one after the other. Everybody takes them in the same order, so that two callers never wait
   * for each other; what is already taken is kept alive meanwhile. In the end all are confirmed at once: should one
   * have been lost on the way, it starts again.
   */
  async #gather(keys: readonly ResourceKeys[], ttl: number, patience: Patience): Promise<Granted> {
    for (;;) {
      const claim = this.begin(keys, ttl, true);
      const taken: Lease[] = [];
      try {
        for (const key of keys) {
          const part = new PendingClaim(claim.token, [key]);
          const { fencingTokens, acquired } = await this.#room.wait(part, ttl, patience);
          const lease = new Lease(claim.token, part.keys, fencingTokens, { ttl, acquired });
          taken.push(lease);
          this.#keeper.keep(lease);
        }
        const allHeld = taken.every(({ state }) => state === 'held');
        // From here on the confirmation renews them: one that was lost now would be burned after it.
        for (const lease of taken) this.#keeper.markReleased(lease);
        const acquired = now();
        const reply = allHeld && (await this.#store.acquire(claim, ttl));
        if (reply && reply.granted) return new Granted(claim, reply.fencingTokens, acquired);
        await this.#giveUp(claim, ttl);
      } catch (error) {
        await this.#giveUp(claim, ttl);
        throw error;
      } finally {
        for (const lease of taken) this.#keeper.markReleased(lease);
      }
    }
  }

  async #giveUp(claim: PendingClaim, ttl: number): Promise<void> {
    this.end(claim);
    await this.#store.burn(claim).catch(() => this.#store.giveBack(claim, ttl));
  }
}
