import type { Lease } from './lease.js';
import type { LeaseKeeper } from './lease-keeper.js';
import { Lock } from './lock.js';

/** A lock that was granted: what keeps it, and what its holder gets when it wants to have it. */
export class Grant {
  readonly lease: Lease;
  readonly #keeper: LeaseKeeper;
  #lock: Lock | undefined;

  constructor(lease: Lease, keeper: LeaseKeeper) {
    this.lease = lease;
    this.#keeper = keeper;
  }

  get lock(): Lock {
    this.#lock ??= Lock.of(this.lease, this.#keeper);
    return this.#lock;
  }
}
