import { LockScopeError } from '../errors/lock.errors.js';
import { resourcesOf } from '../redis/lock-keys.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import { Visits } from './visits.js';

/**
 * open: its work runs, or others that it did not wait for. failed: its work has thrown, and it waits for the others; left:
 * nobody wants more of its work.
 */
type State = 'open' | 'failed' | 'left' | 'ended';

const FAILED = 'The work under the lock has failed: nothing more can be queued or committed in it';
const LEFT = 'Nobody wants more of the work under the lock: nothing more can be queued or committed in it';
const COMMITTED =
  'The commit is over: a listener of it can read, but queue and commit nothing; withLock() takes the lock again';
const ENDED = 'The lock scope has ended: its LockContext cannot be used any more';

/** How long a scope lasts, and what its LockContext may be used for meanwhile. */
export class ScopeLife {
  readonly #keys: readonly ResourceKeys[];
  /** Whether it is the one of a listener, whose commit is over. */
  readonly isListener: boolean;
  #state: State = 'open';
  /** How many listeners of its work are being told: they may still read. */
  #telling = 0;
  /** Made when needed: most scopes have neither. */
  #visits: Visits | undefined;
  #committing: Set<Promise<unknown>> | undefined;

  constructor(keys: readonly ResourceKeys[], isListener: boolean) {
    this.#keys = keys;
    this.isListener = isListener;
  }

  /** Whether it is still waited for. */
  get isOpen(): boolean {
    return this.#state !== 'ended';
  }

  /** Those who use it without being its own work. */
  get visits(): Visits {
    return (this.#visits ??= new Visits());
  }

  /** It does not end before the commit has. */
  awaitCommit(commit: Promise<unknown[]>): Promise<unknown[]> {
    const committing = (this.#committing ??= new Set());
    const ended: Promise<unknown[]> = commit.finally(() => committing.delete(ended));
    committing.add(ended);
    return ended;
  }

  fail(): void {
    this.#state = 'failed';
  }

  leave(): void {
    if (this.#state === 'open') this.#state = 'left';
  }

  async tell(listener: () => Promise<void>): Promise<void> {
    this.#telling += 1;
    try {
      await listener();
    } finally {
      this.#telling -= 1;
    }
  }

  /**
   * Ends it: at once, or after the last visitor has left and the last commit() is over. Locks that were acquired in it
   * end at once.
   *
   * @param onFailure called at once with what a commit() came to that the work had not waited for
   */
  end(onFailure: (error: unknown) => void): Promise<void> | undefined {
    if (this.#visits?.present.size || this.#committing?.size) return this.#endAfterAll(onFailure);
    this.#visits?.endAcquired();
    this.#state = 'ended';
    return undefined;
  }

  /** @throws LockScopeError */
  assertReadable(): void {
    if (this.#state === 'ended' && this.#telling === 0) throw this.#refusal(ENDED);
  }

  /** @throws LockScopeError when nothing more can be queued or committed */
  assertWorking(): void {
    if (this.isListener || (this.#state === 'ended' && this.#telling > 0)) throw this.#refusal(COMMITTED);
    if (this.#state !== 'open')
      throw this.#refusal({ failed: FAILED, left: LEFT, ended: ENDED }[this.#state]);
  }

  async #endAfterAll(onFailure: (error: unknown) => void): Promise<void> {
    this.visits.endAcquired();
    for (;;) {
      const commits = [...(this.#committing ?? [])].map((commit) => commit.catch(onFailure));
      const all = [...(this.#visits?.present ?? []), ...commits];
      if (all.length === 0) break;
      await Promise.all(all);
    }
    this.#state = 'ended';
  }

  #refusal(message: string): LockScopeError {
    return new LockScopeError(message, { resources: resourcesOf(this.#keys) });
  }
}
