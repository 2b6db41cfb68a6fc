import type { Redis } from 'ioredis';
import {
  LockConflictError,
  LockLostError,
  LockOutcomeUnknownError,
  LockTransactionError,
  LockUnavailableError,
} from '../errors/lock.errors.js';
import type { FailedCommand } from '../errors/lock.errors.js';
import type { LeaseKeeper } from '../lock/lease-keeper.js';
import type { Lease } from '../lock/lease.js';
import { needsTwoSteps, sendCommit } from '../redis/commit-pipeline.js';
import type { CommitAnswer, CommitRequest } from '../redis/commit-pipeline.js';
import { pause } from '../redis/deadline.js';
import { now } from '../redis/instant.js';
import type { Claim, ResourceKeys } from '../redis/lock-keys.js';
import type { LockStore } from '../redis/lock-store.js';
import { isReply } from '../redis/redis-client.js';
import type { Servers } from '../redis/servers.js';
import type { QueuedCommand } from './lock-transaction.js';
import type { Watch } from './watch.js';

/** Tries for a commit that Redis refused although the lock is held: something touched its keys on the way. */
const MAX_TRIES = 5;
/** ms between two tries to settle, or to commit where Redis could not take it. */
const PAUSE = 50;

/** Redis' words for "not now, not here": about the server, not about the commands. */
const SERVER_ERRORS =
  /^(READONLY|MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|BUSY|MASTERDOWN|NOREPLICAS|MISCONF|NOAUTH|WRONGPASS)\b/;

/** Of these, the ones that a new connection may mend: it can lead to another server. */
const REPLACED = /^(READONLY|MASTERDOWN|NOREPLICAS|MISCONF)\b/;

export interface Committed {
  /** Undefined when the commit is known to be applied, but its replies are lost. */
  readonly replies: unknown[] | undefined;
}

/** What is to be committed, and under which leases. */
export interface CommitOrder {
  readonly lease: Lease;
  /** Leases of outer scopes that the work relied on: they have to be held as well. */
  readonly alsoHeld: readonly Lease[];
  readonly commands: readonly QueuedCommand[];
  /** Keep the lock; otherwise the same EXEC gives it up. */
  readonly keep: boolean;
  /** Keys it depends on; the commit ends the watch. */
  readonly watch?: Watch | undefined;
}

/**
 * Applies queued commands by MULTI/EXEC only if the lock is held in that instant, and finds out what happened when
 * the answer is missing.
 */
export class GuardedCommit {
  readonly #store: LockStore;
  readonly #servers: Servers;
  readonly #keeper: LeaseKeeper;
  readonly #commandTimeout: number;

  constructor(store: LockStore, servers: Servers, keeper: LeaseKeeper, commandTimeout: number) {
    this.#store = store;
    this.#servers = servers;
    this.#keeper = keeper;
    this.#commandTimeout = commandTimeout;
  }

  /**
   * @throws LockLostError nothing was applied
   * @throws LockConflictError nothing was applied: a watched key changed, or may have
   * @throws LockTransactionError Redis refused the transaction, or commands failed in it
   * @throws LockUnavailableError nothing was applied, and the lock is still what it was
   * @throws LockOutcomeUnknownError
   */
  async commit(order: CommitOrder): Promise<Committed> {
    const leases = [order.lease, ...order.alsoHeld];
    for (const each of leases) each.relyingCommits += 1;
    try {
      for (const each of leases) {
        if (each.heard) await this.#keeper.untilHeard(each);
        // Commits that follow each other at once leave no other time for it.
        const renewing = this.#keeper.upToDate(each);
        if (renewing) await renewing;
      }
      return await this.#commit(order);
    } finally {
      for (const each of leases) each.relyingCommits -= 1;
    }
  }

  async #commit(order: CommitOrder): Promise<Committed> {
    const { lease, alsoHeld, commands, keep } = order;
    // One after the other: only the last one of a lease is recorded.
    while (lease.committing) await lease.committing;
    let ended = () => undefined as void;
    lease.committing = new Promise((resolve) => (ended = resolve));
    try {
      const fencingToken = lease.fencingTokens[0] ?? 0;
      const request = { claim: lease, fencingToken, alsoHeld, number: ++lease.commits, commands, keep };
      this.#assertOneSlot(request);
      const answer = await this.#send(order, request);
      if (answer.outcome === 'unanswered') return await this.#settle(order, request, answer.error);
      return this.#conclude(order, answer);
    } finally {
      lease.committing = undefined;
      ended();
    }
  }

  /** @throws LockTransactionError: in a cluster, a transaction has one server, and one slot there */
  #assertOneSlot({ claim, alsoHeld }: CommitRequest): void {
    const first = firstOf(claim);
    const slot = this.#servers.slotOf(first.owner);
    if (slot === undefined) return;
    for (const other of [claim, ...alsoHeld].flatMap(({ keys }) => keys)) {
      if (this.#servers.slotOf(other.owner) === slot) continue;
      throw new LockTransactionError(
        `The locks on "${first.resource}" and "${other.resource}" are in different slots of the cluster, where no ` +
          'transaction can have both; give them a `slot` in common. Nothing was applied',
        { applied: 'none', resources: [first.resource, other.resource] },
      );
    }
  }

  /**
   * Sends it; again, for as long as one command may take, while Redis could not take it and the lock is still held.
   * What was watched is gone after the first time, so that then the work has to decide.
   */
  async #send(order: CommitOrder, request: CommitRequest): Promise<CommitAnswer> {
    if (order.watch) return this.#sendWatching(order, order.watch, request);
    const twoSteps = needsTwoSteps(request, this.#servers.clientPrefix);
    const until = performance.now() + this.#commandTimeout;
    for (let tries = 1; ; tries += 1) {
      const answer = await this.#sendUnwatched(order, request, twoSteps);
      if (answer.outcome === 'changed') {
        if (tries === MAX_TRIES) return answer;
      } else {
        if (!mayPassLater(answer) || performance.now() + PAUSE > until) return answer;
        await pause(Math.min(PAUSE, order.lease.remaining));
        await this.#servers.lookAgain();
      }
    }
  }

  async #sendUnwatched(order: CommitOrder, request: CommitRequest, twoSteps: boolean): Promise<CommitAnswer> {
    try {
      const { commits } = await this.#servers.of(firstOf(order.lease));
      const drop = (doubtful: Redis) => commits.drop(doubtful);
      const send = async (redis: Redis) => {
        const answer = await this.#sendOnce(redis, order, request, twoSteps, drop);
        if (answer.outcome === 'refused' && REPLACED.test(answer.error.message)) commits.retire(redis);
        return answer;
      };
      return await (twoSteps ? commits.alone(send) : commits.share(send));
    } catch (error) {
      return notReached(error);
    }
  }

  async #sendWatching(order: CommitOrder, watch: Watch, request: CommitRequest): Promise<CommitAnswer> {
    let state: 'clean' | 'doubtful' = 'doubtful';
    try {
      const drop = (doubtful: Redis) => doubtful.disconnect(); // and never used again, see below
      const answer = await this.#sendOnce(await watch.connection(), order, request, true, drop);
      // EXEC was answered, or the connection is closed already.
      if (answer.outcome !== 'unanswered' && !(answer.outcome === 'refused' && !isReply(answer.error))) {
        state = 'clean';
      }
      if (!mayPassLater(answer)) return answer;
      await this.#servers.lookAgain();
      return { outcome: 'changed' };
    } finally {
      void watch.end(state);
    }
  }

  async #sendOnce(
    redis: Redis,
    { lease, alsoHeld }: CommitOrder,
    request: CommitRequest,
    twoSteps: boolean,
    drop: (doubtful: Redis) => void,
  ): Promise<CommitAnswer> {
    if ([lease, ...alsoHeld].some(({ remaining }) => remaining <= 0)) return { outcome: 'lost' };
    // A renewal between WATCH and EXEC would make Redis refuse the commit.
    const leases = [lease, ...alsoHeld];
    for (const each of leases) this.#keeper.pauseRenewal(each);
    try {
      const sent = now();
      const answer = await sendCommit(redis, request, this.#commandTimeout, drop, twoSteps);
      if (answer.outcome === 'applied') this.#store.reportHandOvers(lease, answer.handedOver ?? [], sent);
      return answer;
    } finally {
      for (const each of leases) this.#keeper.resumeRenewal(each);
    }
  }

  #conclude(
    { lease, commands, keep, watch }: CommitOrder,
    answer: Exclude<CommitAnswer, { outcome: 'unanswered' }>,
  ): Committed {
    const { resources } = lease;
    switch (answer.outcome) {
      case 'applied':
        // Where the release failed inside EXEC, its script being unknown after SCRIPT FLUSH, the lock is still there,
        // and the caller's release takes care of it.
        if (!keep && answer.handedOver) this.#keeper.markReleased(lease);
        return { replies: assertReplies(answer.replies, commands, resources) };
      case 'lost':
        this.#keeper.lose(lease, 'it was not held any more at its commit');
        throw new LockLostError({ resources, reason: 'it was not held any more at its commit' });
      case 'changed':
        if (watch) throw new LockConflictError('A watched key was changed before the commit', { resources });
        throw new LockUnavailableError(
          `The commit was refused ${MAX_TRIES} times: the lock's keys keep changing`,
          {
            resources,
          },
        );
      case 'refused':
        throw refusal(answer, commands, resources);
      case 'unguarded':
        this.#store.onUnclear(lease); // it may have been handed over there
        throw new LockTransactionError('Redis ran the commands although the lock was not verified', {
          applied: 'partial',
          replies: answer.replies,
          failures: failed(answer.replies, commands),
          resources,
          cause: answer.error,
        });
    }
  }

  /**
   * Finds out about a commit whose answer is missing, by taking the lock away from it: what has not been applied
   * by then is refused by its guard whenever it arrives. Goes on until the lease's end.
   */
  async #settle({ lease, keep }: CommitOrder, request: CommitRequest, cause: Error): Promise<Committed> {
    const { resources } = lease;
    this.#keeper.pauseRenewal(lease); // for good: whatever comes out, the lease ends here
    for (;;) {
      const verdict = await this.#store.burn(lease, request).catch(() => undefined); // asked again below
      if (verdict === 'committed') {
        this.#store.onUnclear(lease); // its hand-over was in the lost answer
        if (keep) this.#keeper.lose(lease, 'it was given up to find out about a commit that was cut off');
        this.#keeper.markReleased(lease);
        return { replies: undefined };
      }
      if (verdict === 'gone') {
        const reason = 'its commit was cut off, and the lock was given up so that it can never be applied';
        this.#keeper.lose(lease, reason);
        throw new LockLostError({ resources, reason, cause });
      }
      if (verdict === 'unknown' || lease.remaining <= 0) {
        this.#keeper.lose(lease, 'its commit was cut off');
        throw new LockOutcomeUnknownError('Whether the commit was applied cannot be told', {
          resources,
          cause,
        });
      }
      await pause(Math.min(PAUSE, lease.remaining));
    }
  }
}

function firstOf({ keys }: Claim): ResourceKeys {
  const [first] = keys;
  if (first === undefined) throw new LockTransactionError('A commit needs a lock', { applied: 'none' });
  return first;
}

/**
 * No connection is an answer too: nothing was applied.
 *
 * @throws what is no word of Redis or its connection
 */
function notReached(error: unknown): CommitAnswer {
  if (error instanceof LockUnavailableError && error.cause instanceof Error) {
    return { outcome: 'refused', error: error.cause, failures: [] };
  }
  throw error;
}

/** Nothing was applied, for a reason that does not lie in the commit: it may pass a moment later. */
function mayPassLater(answer: CommitAnswer): boolean {
  if (answer.outcome !== 'refused') return false;
  const { error, failures } = answer;
  const said = failures.find((failure) => failure !== undefined) ?? error;
  return !isReply(said) || SERVER_ERRORS.test(said.message);
}

function failed(replies: readonly unknown[], commands: readonly QueuedCommand[]): FailedCommand[] {
  return replies.flatMap((error, index) => {
    const command = commands[index]?.method ?? '';
    return error instanceof Error ? [{ index, command, error }] : [];
  });
}

/** A script that fails may have written before it did. */
function hasNoEffect({ command }: FailedCommand): boolean {
  return !/^(eval|fcall|call)/i.test(command);
}

/** Redis does not roll back: what failed is told, and what did not fail stands. */
function assertReplies(
  replies: readonly unknown[],
  commands: readonly QueuedCommand[],
  resources: readonly string[],
): unknown[] {
  const failures = failed(replies, commands);
  const first = failures[0];
  if (first === undefined) return [...replies];
  throw new LockTransactionError(
    `${failures.length} of ${commands.length} commands failed inside EXEC, first ${first.command} at ${first.index}: ` +
      `${first.error.message}. Redis does not roll back the others`,
    {
      applied: failures.length === commands.length && failures.every(hasNoEffect) ? 'none' : 'partial',
      failures,
      replies,
      resources,
      cause: first.error,
    },
  );
}

/** Either the transaction was wrong, or Redis could not take any. */
function refusal(
  { error, failures }: Extract<CommitAnswer, { outcome: 'refused' }>,
  commands: readonly QueuedCommand[],
  resources: readonly string[],
): LockTransactionError | LockUnavailableError {
  const refused = failed(failures, commands);
  const first = refused[0];
  if (first === undefined || SERVER_ERRORS.test(first.error.message)) {
    const cause = first?.error ?? error;
    return new LockUnavailableError(`Redis refused the commit: ${cause.message}`, { resources, cause });
  }
  return new LockTransactionError(
    `Redis refused ${first.command} at ${first.index}: ${first.error.message}; nothing was applied`,
    { applied: 'none', failures: refused, resources, cause: first.error },
  );
}
