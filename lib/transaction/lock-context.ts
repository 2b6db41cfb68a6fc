import type { Cluster, Redis } from 'ioredis';
import type { Lock } from '../lock/lock.js';
import type { LockTransaction } from './lock-transaction.js';

/**
 * What the work under a lock can see and do. It is given to the work, and can be injected anywhere: then it speaks
 * for the innermost lock scope the caller runs in. Outside of one, and after the scope has ended, every use is
 * refused with a LockScopeError.
 */
export abstract class LockContext {
  abstract readonly lock: Lock;
  /** Aborted when the lock is lost; see {@link Lock.signal}. */
  abstract readonly signal: AbortSignal;
  /** See {@link Lock.fencingTokens}. */
  abstract readonly fencingToken: number;
  /** Commands that run at once, outside of the transaction: read here. */
  abstract readonly redis: Redis | Cluster;
  /**
   * Commands that are applied together when the work has ended, and only if the lock is still held then. Work that
   * fails leaves none of them applied, nor what work inside of it has handed in, under whichever lock.
   */
  abstract readonly multi: LockTransaction;
  /**
   * A data key in the same cluster slot as the lock: under a lock on `order:42`, `key('items')` is
   * `{order:42}:items`. Under several resources, of the first one.
   */
  abstract key(...parts: (string | number)[]): string;
  /**
   * Has the next commit refused, and the work run again under the same lock, if one of the keys changes from now on.
   * Read them on `redis` after this. Up to `retries` times, then the call rejects with a LockConflictError. The next
   * commit ends the watch, also one by {@link commit}.
   *
   * @throws LockUnavailableError when no connection could be had: 8 watch at once, others wait for as long as their
   * lease lasts, 30 s at most; or when Redis refused
   * @throws LockConflictError when the connection was lost: the work runs again as well
   */
  abstract watch(...keys: string[]): Promise<void>;
  /**
   * Commits what is queued now and keeps the lock: first what work around this one had queued under it. When nothing
   * was applied, that stays queued, while what this work queued is dropped, with its listeners.
   *
   * The end of the work waits for a call that the work did not wait for. The work has failed if that call has, unless
   * it threw an error of its own.
   *
   * @returns the replies to what this work queued, in order
   * @throws LockScopeError when it would end what other work under the same lock still watches, and with
   * `transaction: false`
   * @throws LockLostError when the lock was not held any more: nothing was applied
   * @throws LockConflictError when a watched key changed: nothing was applied
   * @throws LockTransactionError when Redis refused the transaction, or commands failed in it
   * @throws LockUnavailableError, LockOutcomeUnknownError
   */
  abstract commit(): Promise<unknown[]>;
  /**
   * Has the listener called once: after the first commit that is applied and holds something that this work queued,
   * before the call settles that committed it. Work that has nothing queued when it ends has it called with `[]` at
   * the end of the work that holds the lock, unless the lock was lost by then. It is never called for work that failed.
   * Side effects that must happen once belong here: the work may run more than once, and each run registers anew.
   *
   * In work that joined another one's lock, this is the commit of the outer work, in most cases.
   *
   * In the listener, LockContext can read (`redis`, `key()`, `lock`), and nothing more can be queued: the commit is
   * over. `withLock()` there takes the lock again. A listener that fails is logged: what was committed stays
   * committed. When the replies are lost, the call rejects with a LockOutcomeUnknownError that says so.
   *
   * @param listener given the replies to what this work had queued in that commit, and what work inside of it had
   * handed in
   */
  abstract afterCommit(listener: (replies: unknown[]) => void): void;
}
