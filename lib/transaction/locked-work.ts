import type { Logger } from '@nestjs/common';
import { LockLostError } from '../errors/lock.errors.js';
import type { LeaseKeeper } from '../lock/lease-keeper.js';
import type { Lease } from '../lock/lease.js';
import type { WithLockOptions } from '../redis-lock.options.js';
import { pause } from '../redis/deadline.js';
import type { RedisClient } from '../redis/redis-client.js';
import type { Release } from '../redis/lock-replies.js';
import type { GuardedCommit } from './guarded-commit.js';
import type { LockContext } from './lock-context.js';
import { LockScope, wasNothingApplied } from './lock-scope.js';
import type { Refusal, ScopeHost, Setting } from './lock-scope.js';
import type { Grant } from '../lock/grant.js';
import type { LockScopes } from './lock-scopes.js';
import type { QueuedCommand } from './lock-transaction.js';
import type { Watch } from './watch.js';

/** The work under a lock; it may run more than once. */
export type Work<T> = (context: LockContext) => T | Promise<T>;

/** What a run came to: its result, or a commit that was refused so that the work may run again. */
export type RunOutcome<T> = { readonly result: T } | { readonly refused: Refusal };

/** How often work may still run again, under this lock or another one. */
export interface Retries {
  left: number;
}

export interface LockedWorkParts {
  /** Whose locks these are. */
  readonly service: object;
  readonly keeper: LeaseKeeper;
  readonly commits: GuardedCommit;
  readonly scopes: LockScopes;
  readonly redis: RedisClient;
  readonly knownCommands: ReadonlySet<string>;
  readonly slotOf: (name: string) => number | undefined;
  readonly openWatch: (lease: Lease, held: number) => Watch;
  readonly logger: Logger;
}

/** ms to wait at most before work runs again that met a conflict; doubled each time. */
const FIRST_JITTER = 10;
const MAX_JITTER = 200;

/** Runs work under locks: the one place where scopes begin and end. */
export class LockedWork {
  readonly #parts: LockedWorkParts;
  readonly #host: ScopeHost;

  constructor(parts: LockedWorkParts) {
    const { service, redis, knownCommands, slotOf, openWatch } = parts;
    this.#parts = parts;
    this.#host = {
      service,
      redis,
      knownCommands,
      slotOf,
      openWatch,
      commitNow: (...commit) => this.#commitNow(...commit),
      runListener: (scope, listener) => this.#runListener(scope, listener),
    };
  }

  /**
   * Runs work under a lock that was granted, commits what it queued and gives the lock up, in any case. On a conflict
   * the work runs again under the same lock.
   *
   * @returns `refused` when the lock was lost and nothing applied, so that the work may run under another one
   * @throws the work's own error, untouched, if it has one
   */
  async run<T>(
    grant: Grant,
    setting: Setting,
    work: Work<T>,
    options: WithLockOptions,
    retries: Retries,
  ): Promise<RunOutcome<T>> {
    const { lease } = grant;
    const transaction = options.transaction ?? true;
    const open = () => new LockScope(this.#host, grant, setting, transaction);
    try {
      const commit = (scope: LockScope) => this.#commitAtEnd(scope, lease, options);
      return await this.#rerunOnConflict(lease, retries, open, work, commit);
    } finally {
      if (lease.state === 'held') await this.#release(lease);
    }
  }

  /**
   * Runs work under locks that an open scope has. What it queued is handed in when it has ended well.
   *
   * @param grants of the resources that it asked for
   */
  async join<T>(
    scope: LockScope,
    grants: readonly Grant[],
    setting: Setting,
    work: Work<T>,
    options: WithLockOptions,
    retries: Retries,
  ): Promise<T> {
    const [first] = setting.keys;
    const grant =
      grants.find(({ lease }) => lease.keys.some(({ owner }) => owner === first?.owner)) ?? scope.grant;
    for (const { lease } of grants) {
      if (lease.remaining > 0) continue;
      throw new LockLostError({ resources: lease.resources, reason: 'the scope it was to join has lost it' });
    }
    const borrowed = [...new Set([...scope.borrowed, scope.grant, ...grants])].filter(
      (each) => each !== grant,
    );
    const transaction = options.transaction ?? true;
    const open = () => scope.join(grant, { ...setting, borrowed }, transaction);
    const handIn = (inner: LockScope) => inner.handIn();
    const outcome = await this.#rerunOnConflict(scope.grant.lease, retries, open, work, handIn);
    if ('refused' in outcome) throw outcome.refused;
    return outcome.result;
  }

  /**
   * Runs the work in a scope of its own, and commits; again when that was refused and nothing is applied.
   */
  async #rerunOnConflict<T>(
    lease: Lease,
    retries: Retries,
    open: () => LockScope,
    work: Work<T>,
    commit: (scope: LockScope) => Promise<void>,
  ): Promise<RunOutcome<T>> {
    for (let jitter = FIRST_JITTER; ; jitter = Math.min(2 * jitter, MAX_JITTER)) {
      const scope = open();
      try {
        const result = await this.#runIn(scope, work);
        await commit(scope);
        return { result };
      } catch (error) {
        if (!scope.isRefusal(error) || lease.state === 'released') throw error;
        if (error instanceof LockLostError) return { refused: error };
        if (retries.left <= 0) throw error;
      } finally {
        scope.discard(); // of work that failed; otherwise there is nothing left
        void scope.takeWatch()?.end('watching'); // there was nothing to commit
      }
      await pause(Math.random() * jitter);
      if (lease.remaining <= 0) {
        const reason = 'it was not held any more when the work was to run again';
        return { refused: new LockLostError({ resources: lease.resources, reason }) };
      }
      retries.left -= 1;
    }
  }

  /** @throws what the commit was refused with, or came to */
  async #commitAtEnd(scope: LockScope, lease: Lease, options: WithLockOptions): Promise<void> {
    const batch = scope.takeAll();
    const { commands } = batch;
    const { resources } = lease;
    let replies: unknown[] | undefined = [];
    if (lease.state === 'released') {
      // By the work itself, which is no loss and nothing to try again; or to find out about a commit().
      if (commands.length > 0) {
        throw new LockLostError({ resources, reason: 'the work released it before its commit' });
      }
      if (lease.lossReason !== undefined) return;
    } else if (commands.length === 0) {
      const wasHeld = await this.#releaseUncommitted(lease, options.onLost ?? 'throw');
      if (!wasHeld) return;
    } else {
      const keep = lease.minHoldLeft > 0; // released later
      const alsoHeld = scope.borrowed.map((borrowed) => borrowed.lease);
      const order = { lease, alsoHeld, commands, keep, watch: scope.takeWatch() };
      scope.countCommit(1); // before anything can be applied
      try {
        ({ replies } = await this.#parts.commits.commit(order));
      } catch (error) {
        if (wasNothingApplied(error)) scope.countCommit(-1);
        throw scope.noteRefusal(error);
      }
    }
    scope.sendOn();
    await scope.reportCommit([batch], replies);
  }

  async #runIn<T>(scope: LockScope, work: Work<T>): Promise<T> {
    let result: T;
    try {
      const returned = this.#parts.scopes.run(scope, () => work(scope));
      // `({ multi }) => multi.set(..)` returns the queue, which is nothing to wait for and no result.
      result = scope.isQueue(returned) ? (undefined as T) : await returned;
    } catch (error) {
      scope.fail();
      await this.#parts.scopes.end(scope)?.catch((unheard: unknown) => {
        this.#parts.logger.warn(
          `Work under a lock failed, and a commit() that it did not wait for: ${String(unheard)}`,
        );
      });
      throw error;
    }
    const ended = this.#parts.scopes.end(scope);
    if (ended) await ended;
    return result;
  }

  async #runListener(scope: LockScope, listener: () => unknown): Promise<void> {
    try {
      await this.#runIn(scope, listener);
      scope.sendOn();
    } catch (error) {
      this.#parts.logger.error('A commit listener failed after its commit was applied', error);
    } finally {
      scope.discard();
    }
  }

  async #commitNow(
    lease: Lease,
    reliedOn: readonly Lease[],
    commands: readonly QueuedCommand[],
    watch: Watch | undefined,
  ): Promise<unknown[] | undefined> {
    const alsoHeld = reliedOn.filter((each) => each !== lease);
    const order = { lease, alsoHeld, commands, keep: true, watch };
    return (await this.#parts.commits.commit(order)).replies;
  }

  /**
   * Nothing was queued, so that nothing but this release can tell whether the lock was held to the end.
   *
   * @returns whether it was
   */
  async #releaseUncommitted(lease: Lease, onLost: 'throw' | 'report'): Promise<boolean> {
    if (lease.remaining <= 0) await this.#parts.keeper.upToDate(lease);
    const lost = lease.remaining <= 0;
    const release = await this.#release(lease);
    if (!lost && release !== 'not ours') return true;
    const error = new LockLostError({
      resources: lease.resources,
      reason: 'it was not held any more when the work under it had ended',
    });
    if (onLost === 'throw') throw error;
    this.#parts.logger.warn(error.message);
    return false;
  }

  /**
   * Never rejects: what the work came to is never replaced by a failed release.
   *
   * @returns undefined when Redis could not be asked, or there was nothing to release.
   */
  async #release(lease: Lease): Promise<Release | undefined> {
    if (lease.state !== 'held') return undefined;
    try {
      return await this.#parts.keeper.release(lease);
    } catch (error) {
      this.#parts.logger.warn(`A lock could not be released and ends with its lease: ${String(error)}`);
      return undefined;
    }
  }
}
