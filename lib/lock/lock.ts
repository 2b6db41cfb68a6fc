import { AsyncResource } from 'node:async_hooks';
import { setMaxListeners } from 'node:events';
import { LockLostError } from '../errors/lock.errors.js';
import { checkAcquireOptions } from '../redis-lock.options.js';
import type { LeaseKeeper } from './lease-keeper.js';
import type { Lease } from './lease.js';

/** The turn of a lock that was acquired inside of a scope which has it, or a part of it. */
export interface HeldTurn {
  /** Aborted when the work of the scope has ended. */
  readonly ended: AbortSignal;
  leave(): void;
}

/**
 * A lock that is held. `await using lock = await locks.acquire('order:42')` releases it at the end of the block.
 */
export class Lock implements AsyncDisposable {
  /** Sorted, without repetition. */
  readonly resources: readonly string[];
  /** Unique to this acquisition; the value of the lock's key in Redis. */
  readonly token: string;
  readonly #lease: Lease;
  readonly #keeper: LeaseKeeper;
  readonly #turn: HeldTurn | undefined;
  #onEnd: (() => void) | undefined;
  readonly #joined: boolean;
  #fencingTokens: ReadonlyMap<string, number> | undefined;
  #controller: AbortController | undefined;
  /** In the async context of whoever wanted the signal: a timer's is somebody else's. */
  #abort: ((reason: LockLostError) => void) | undefined;
  #lost: LockLostError | undefined;
  #released: Promise<void> | undefined;
  readonly #onLoss = (reason: string) => {
    this.#lost = new LockLostError({ resources: this.resources, reason });
    this.#abort?.(this.#lost);
  };

  private constructor(lease: Lease, keeper: LeaseKeeper, turn: HeldTurn | undefined, joined: boolean) {
    this.#lease = lease;
    this.#keeper = keeper;
    this.#turn = turn;
    this.#joined = joined;
    this.resources = lease.resources;
    this.token = lease.token;
    if (lease.lossReason === undefined) lease.onLoss(this.#onLoss);
    else this.#onLoss(lease.lossReason);
    if (turn && joined) this.#endWith(turn);
  }

  /**
   * @internal
   * @param turn given up with the lock
   * @param joined the lease belongs to a scope that the caller runs in: a release ends this Lock only, as the end of
   * that scope's work does
   */
  static of(lease: Lease, keeper: LeaseKeeper, turn?: HeldTurn, joined = false): Lock {
    return new Lock(lease, keeper, turn, joined);
  }

  /** Grows with every grant of a resource: give it to what you write to, and let that refuse smaller ones. */
  get fencingTokens(): ReadonlyMap<string, number> {
    const { resources, fencingTokens } = this.#lease;
    this.#fencingTokens ??= new Map(resources.map((resource, i) => [resource, fencingTokens[i] ?? 0]));
    return this.#fencingTokens;
  }

  /** Of several resources the largest one. */
  get fencingToken(): number {
    return Math.max(...this.#lease.fencingTokens);
  }

  /**
   * Aborted, with a LockLostError as its reason, when the lock is lost: at the latest when the lease this process
   * knows of ends, which is before anybody else can have it. A release does not abort it.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      const controller = new AbortController();
      setMaxListeners(0, controller.signal); // as many as the work gives it to
      this.#controller = controller;
      this.#abort = AsyncResource.bind((reason: LockLostError) => controller.abort(reason));
      if (this.#lost) this.#controller.abort(this.#lost);
    }
    this.#loseWhenOver();
    return this.#controller.signal;
  }

  /** Whether this process may still count on the lock. */
  get held(): boolean {
    this.#loseWhenOver();
    return this.remaining > 0;
  }

  /** ms of lease this process may still count on; 0 when lost, released, or on its way to Redis with its last commit. */
  get remaining(): number {
    return this.#released || this.#lease.isLeaving ? 0 : this.#lease.remaining;
  }

  /**
   * Makes the lease last `ttl` ms from now, and from each renewal on.
   *
   * @param ttl default: the ttl the lock has
   * @throws LockLostError when the lock was lost or released
   * @throws LockUnavailableError when Redis could not be asked; the lease is what it was, or shorter if it was to be
   */
  async extend(ttl: number = this.#lease.ttl): Promise<void> {
    checkAcquireOptions({ ttl }, 'extend');
    this.#loseWhenOver();
    if (this.#released) {
      throw this.#lost ?? new LockLostError({ resources: this.resources, reason: 'it was released before' });
    }
    await this.#keeper.extend(this.#lease, ttl);
  }

  /**
   * Gives the lock up. Can be called again; does nothing to a lock that has another owner by now.
   *
   * @throws LockUnavailableError when Redis could not be asked. The lock is then given back as soon as it answers,
   * and ends with its lease in any case.
   */
  release(): Promise<void> {
    this.#released ??= this.#release();
    return this.#released;
  }

  #release(): Promise<void> {
    this.#lease.offLoss(this.#onLoss);
    const turn = this.#turn;
    if (!this.#joined) {
      const released = this.#keeper.release(this.#lease).then(nothing);
      return turn ? released.finally(() => turn.leave()) : released;
    }
    if (this.#onEnd) turn?.ended.removeEventListener('abort', this.#onEnd);
    turn?.leave();
    return Promise.resolve();
  }

  #endWith({ ended }: HeldTurn): void {
    this.#onEnd = () => {
      this.#onLoss('the work inside of which it was acquired has ended');
      void this.release();
    };
    ended.addEventListener('abort', this.#onEnd);
    if (ended.aborted) this.#onEnd();
  }

  /** Like release, but never in the way of an error that is already on its way: a failed release is no rejection. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => undefined); // the keeper goes on giving it back
  }

  /** The keeper's timer may be late, after a blocked event loop for example: whoever looks sees the truth. */
  #loseWhenOver(): void {
    this.#keeper.loseIfOver(this.#lease);
  }
}

function nothing(): void {
  // A release has no result.
}
