import { LockNotAcquiredError } from '../errors/lock.errors.js';
import { now } from '../redis/instant.js';
import type { Instant } from '../redis/instant.js';
import type { Claim, ResourceKeys } from '../redis/lock-keys.js';
import type { AcquireReply } from '../redis/lock-replies.js';
import type { LockStore } from '../redis/lock-store.js';
import { Bag } from './bag.js';
import type { Placed } from './bag.js';
import { Lease } from './lease.js';
import type { Inheritance } from './lease.js';
import type { LeaseKeeper } from './lease-keeper.js';
import type { Patience } from './waiter.js';
import type { WaitingRoom } from './waiting-room.js';

/** A claim from when it is asked for until it is kept, or given up. */
interface PendingClaim extends Claim, Placed {}

/** A claim that was granted, all of it. */
export interface Acquired {
  readonly claim: PendingClaim;
  /** In the order of the claim's keys. */
  readonly fencingTokens: readonly number[];
  /** When the request for it was sent. */
  readonly acquired: Instant;
  readonly inheritance?: Inheritance | undefined;
}

/** Takes resources all or none: at once, or by waiting in line for as long as somebody is ready to. */
export class Acquirer {
  readonly #store: LockStore;
  readonly #room: WaitingRoom;
  readonly #keeper: LeaseKeeper;
  readonly #newToken: (ttl: number) => string;
  /** What was asked for, until it is given up or {@link begun}. */
  readonly #pending = new Bag<PendingClaim>();

  constructor(store: LockStore, room: WaitingRoom, keeper: LeaseKeeper, newToken: (ttl: number) => string) {
    this.#store = store;
    this.#room = room;
    this.#keeper = keeper;
    this.#newToken = newToken;
  }

  isPending(token: string): boolean {
    return this.#pending.find((claim) => claim.token === token) !== undefined;
  }

  /** Somebody else keeps what was acquired with the claim from here on, or nobody does. */
  begun(claim: PendingClaim): void {
    this.#pending.delete(claim);
  }

  #begin(keys: readonly ResourceKeys[], ttl: number): PendingClaim {
    const claim = { token: this.#newToken(ttl), keys, place: -1 };
    this.#pending.add(claim);
    return claim;
  }

  /**
   * The claim of what is acquired stays pending until {@link begun} is told of it.
   *
   * @param patience undefined: does not wait
   * @throws LockNotAcquiredError, LockUnavailableError
   */
  async acquire(keys: readonly ResourceKeys[], ttl: number, patience?: Patience): Promise<Acquired> {
    const claim = this.#begin(keys, ttl);
    if (patience !== undefined && keys.length === 1) {
      try {
        const { fencingToken, acquired, inheritance } = await this.#room.wait(claim, ttl, patience);
        return { claim, fencingTokens: [fencingToken], acquired, inheritance };
      } catch (error) {
        this.begun(claim);
        throw error;
      }
    }
    const acquired = now();
    let reply: AcquireReply;
    try {
      reply = await this.#store.acquire(claim, ttl);
    } finally {
      this.begun(claim); // nobody is told of it
    }
    if (reply.granted) return { claim, fencingTokens: reply.fencingTokens, acquired };
    if (patience !== undefined) return this.#gather(keys, ttl, { ...patience, beginsAtOnce: false });
    const { retryAfter } = reply;
    const resources = keys.map(({ resource }) => resource);
    throw new LockNotAcquiredError('busy', {
      resources,
      ...(retryAfter === undefined ? {} : { retryAfter }),
    });
  }

  /**
   * Several resources one after the other. Everybody takes them in the same order, so that two callers never wait
   * for each other; what is already taken is kept alive meanwhile. In the end all are confirmed at once: should one
   * have been lost on the way, it starts again.
   */
  async #gather(keys: readonly ResourceKeys[], ttl: number, patience: Patience): Promise<Acquired> {
    for (;;) {
      const claim = this.#begin(keys, ttl);
      const taken: Lease[] = [];
      try {
        for (const key of keys) {
          const part = { token: claim.token, keys: [key] };
          const { fencingToken, acquired } = await this.#room.wait(part, ttl, patience);
          const lease = new Lease(claim.token, part.keys, [fencingToken], { ttl, acquired });
          taken.push(lease);
          this.#keeper.keep(lease);
        }
        const allHeld = taken.every(({ state }) => state === 'held');
        // From here on the confirmation renews them: one that was lost now would be burned after it.
        for (const lease of taken) this.#keeper.markReleased(lease);
        const acquired = now();
        const reply = allHeld && (await this.#store.acquire(claim, ttl));
        if (reply && reply.granted) return { claim, fencingTokens: reply.fencingTokens, acquired };
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
    this.begun(claim);
    await this.#store.burn(claim).catch(() => this.#store.giveBack(claim, ttl));
  }
}
