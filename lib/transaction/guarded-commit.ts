import {
  LockLostError,
  LockOutcomeUnknownError,
  LockTransactionError,
  LockUnavailableError,
} from '../errors/lock.errors.js';
import type { FailedCommand } from '../errors/lock.errors.js';
import type { LeaseKeeper } from '../lock/lease-keeper.js';
import type { Lease } from '../lock/lease.js';
import { sendCommit } from '../redis/commit-pipeline.js';
import type { CommitAnswer } from '../redis/commit-pipeline.js';
import type { Connections } from '../redis/connections.js';
import { pause } from '../redis/deadline.js';
import type { LockStore } from '../redis/lock-store.js';
import type { QueuedCommand } from './lock-transaction.js';

/** Tries for a commit that Redis refused although the lock is held: something touched its keys on the way. */
const MAX_TRIES = 5;
/** ms between two tries to settle. */
const SETTLE_PAUSE = 50;

/** Redis' words for "not now, not here": about the server, not about the commands. */
const SERVER_ERRORS =
  /^(READONLY|MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|BUSY|MASTERDOWN|NOREPLICAS|MISCONF|NOAUTH|NOSCRIPT)\b/;

export interface Committed {
  /** Undefined when the commit is known to be applied, but its replies are lost. */
  readonly replies: unknown[] | undefined;
}

/**
 * Applies queued commands by MULTI/EXEC only if the lock is held in that instant, and finds out what happened when
 * the answer is missing.
 */
export class GuardedCommit {
  readonly #store: LockStore;
  readonly #connections: Connections;
  readonly #keeper: LeaseKeeper;
  readonly #commandTimeout: number;

  constructor(store: LockStore, connections: Connections, keeper: LeaseKeeper, commandTimeout: number) {
    this.#store = store;
    this.#connections = connections;
    this.#keeper = keeper;
    this.#commandTimeout = commandTimeout;
  }

  /**
   * @param keep commit under a lock that is kept; otherwise the same EXEC gives it up
   * @throws LockLostError nothing was applied
   * @throws LockTransactionError Redis refused the transaction, or commands failed in it
   * @throws LockUnavailableError nothing was applied, and the lock is still what it was
   * @throws LockOutcomeUnknownError
   */
  async commit(lease: Lease, commands: readonly QueuedCommand[], keep: boolean): Promise<Committed> {
    const id = `${lease.token}#${++lease.commits}`;
    this.#keeper.pauseRenewal(lease);
    try {
      const answer = await this.#send(lease, id, commands, keep);
      return await this.#interpret(lease, id, commands, keep, answer);
    } finally {
      this.#keeper.resumeRenewal(lease);
    }
  }

  /** Sends it, again when a key of ours changed on the way and the lock is still held. */
  async #send(
    lease: Lease,
    id: string,
    commands: readonly QueuedCommand[],
    keep: boolean,
  ): Promise<CommitAnswer> {
    for (let tries = 1; ; tries += 1) {
      if (lease.remaining <= 0) return { outcome: 'lost' };
      const redis = await this.#connections.commitConnection();
      const request = { claim: lease, id, commands, keep };
      const answer = await sendCommit(redis, request, this.#commandTimeout, (doubtful) =>
        this.#connections.dropCommitConnection(doubtful),
      );
      if (answer.outcome !== 'changed' || tries === MAX_TRIES) return answer;
    }
  }

  async #interpret(
    lease: Lease,
    id: string,
    commands: readonly QueuedCommand[],
    keep: boolean,
    answer: CommitAnswer,
  ): Promise<Committed> {
    const { resources } = lease;
    switch (answer.outcome) {
      case 'applied':
        // Where finish failed inside EXEC, the lock is still there, and the caller's release takes care of it.
        if (!keep && answer.released) this.#keeper.markReleased(lease);
        return { replies: assertReplies(answer.replies, commands, resources) };
      case 'lost':
        this.#keeper.lose(lease, 'it was not held any more at its commit');
        throw new LockLostError({ resources, reason: 'it was not held any more at its commit' });
      case 'changed':
        throw new LockUnavailableError(
          `The commit was refused ${MAX_TRIES} times: the lock's keys keep changing`,
          {
            resources,
          },
        );
      case 'refused':
        throw refusal(answer, commands, resources);
      case 'unguarded':
        throw new LockTransactionError('Redis ran the commands although the lock was not verified', {
          applied: 'partial',
          replies: answer.replies,
          failures: failed(answer.replies, commands),
          resources,
          cause: answer.error,
        });
      case 'unanswered':
        return this.#settle(lease, id, answer.error);
    }
  }

  /**
   * Finds out about a commit whose answer is missing, by taking the lock away from it: what has not been applied
   * by then is refused by its guard whenever it arrives. Goes on until the lease's end.
   */
  async #settle(lease: Lease, id: string, cause: Error): Promise<Committed> {
    const { resources } = lease;
    const commit = { id, fencingToken: lease.fencingTokens[0] ?? 0 };
    for (;;) {
      const verdict = await this.#store.burn(lease, commit).catch(() => undefined); // asked again below
      if (verdict === 'committed') {
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
      await pause(Math.min(SETTLE_PAUSE, lease.remaining));
    }
  }
}

function failed(replies: readonly unknown[], commands: readonly QueuedCommand[]): FailedCommand[] {
  return replies.flatMap((error, index) => {
    const command = commands[index]?.method ?? '';
    return error instanceof Error ? [{ index, command, error }] : [];
  });
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
      `${first.error.message}. Redis does not roll back: the others were applied`,
    {
      applied: failures.length === commands.length ? 'none' : 'partial',
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
