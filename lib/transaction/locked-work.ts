import type { Logger } from '@nestjs/common';
import { LockLostError, LockOutcomeUnknownError } from '../errors/lock.errors.js';
import type { LeaseKeeper } from '../lock/lease-keeper.js';
import type { Lease } from '../lock/lease.js';
import type { Lock } from '../lock/lock.js';
import type { RedisClient } from '../redis/connections.js';
import type { Release } from '../redis/lock-store.js';
import type { WithLockOptions } from '../redis-lock.options.js';
import type { Committed, GuardedCommit } from './guarded-commit.js';
import type { LockContext } from './lock-context.js';
import { LockScope } from './lock-scope.js';
import type { LockScopes } from './lock-scope.js';
import type { QueuedCommand } from './lock-transaction.js';

/** A lock that was granted: what its holder gets, and what keeps it. */
export interface Grant {
  readonly lock: Lock;
  readonly lease: Lease;
}

/** The work under a lock; it may run more than once. */
export type Work<T> = (context: LockContext) => T | Promise<T>;

/** What a run came to: its result, or a commit that was refused so that the work may run again. */
export type RunOutcome<T> = { readonly result: T } | { readonly refused: LockLostError };

/**
 * Runs work under a lock that was granted, commits what it queued and gives the lock up: the one place where a
 * scope begins and ends.
 */
export class LockedWork {
  readonly #keeper: LeaseKeeper;
  readonly #commits: GuardedCommit;
  readonly #scopes: LockScopes;
  readonly #redis: RedisClient;
  readonly #commands: ReadonlySet<string>;
  readonly #logger: Logger;

  constructor(
    keeper: LeaseKeeper,
    commits: GuardedCommit,
    scopes: LockScopes,
    redis: RedisClient,
    commands: ReadonlySet<string>,
    logger: Logger,
  ) {
    this.#keeper = keeper;
    this.#commits = commits;
    this.#scopes = scopes;
    this.#redis = redis;
    this.#commands = commands;
    this.#logger = logger;
  }

  /** Rejects with the work's own error, untouched, if it has one. The lock is given up in any case. */
  async run<T>(grant: Grant, work: Work<T>, options: WithLockOptions): Promise<RunOutcome<T>> {
    const { lease, lock } = grant;
    const scope = new LockScope({
      lock,
      redis: this.#redis,
      commands: this.#commands,
      tag: lease.keys[0]?.tag ?? '',
      commitNow: options.transaction === false ? undefined : (commands) => this.#commitNow(lease, commands),
    });
    try {
      const result = await this.#scopes.run(scope, () => callWork(work, scope));
      scope.end();
      const commands = scope.takeCommands();
      if (commands.length === 0) {
        await this.#releaseUncommitted(lease, options.onLost ?? 'throw');
        return { result };
      }
      let committed: Committed;
      try {
        committed = await this.#commits.commit(lease, commands, false);
      } catch (error) {
        if (error instanceof LockLostError && !scope.hasCommitted) return { refused: error };
        throw error;
      }
      scope.reportCommit(committed.replies ?? []);
      return { result };
    } finally {
      scope.end();
      await this.#release(lease);
    }
  }

  async #commitNow(lease: Lease, commands: readonly QueuedCommand[]): Promise<unknown[]> {
    const { replies } = await this.#commits.commit(lease, commands, true);
    if (replies !== undefined) return replies;
    throw new LockOutcomeUnknownError('The commit was applied, but its replies were lost', {
      resources: lease.resources,
    });
  }

  /** Nothing was queued, so that nothing but this release can tell whether the lock was held to the end. */
  async #releaseUncommitted(lease: Lease, onLost: 'throw' | 'report'): Promise<void> {
    const lost = lease.remaining <= 0;
    const release = await this.#release(lease);
    if (!lost && release !== 'not ours') return;
    const error = new LockLostError({
      resources: lease.resources,
      reason: 'the work under it took too long',
    });
    if (onLost === 'throw') throw error;
    this.#logger.warn(error.message);
  }

  /**
   * Never rejects: what the work came to is never replaced by a failed release.
   *
   * @returns undefined when Redis could not be asked, or there was nothing to release.
   */
  async #release(lease: Lease): Promise<Release | undefined> {
    if (lease.state !== 'held') return undefined;
    try {
      return await this.#keeper.release(lease);
    } catch (error) {
      this.#logger.warn(`A lock could not be released and ends with its lease: ${String(error)}`);
      return undefined;
    }
  }
}

/** `({ multi }) => multi.set(..)` returns the queue, which is nothing to wait for and no result. */
async function callWork<T>(work: Work<T>, scope: LockScope): Promise<T> {
  const returned = work(scope);
  return scope.isQueue(returned) ? (undefined as T) : returned;
}
