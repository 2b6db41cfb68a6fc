import { LockTransactionError, LockUnavailableError } from '../errors/lock.errors.js';
import type { FailedCommand } from '../errors/lock.errors.js';
import type { CommitAnswer } from '../redis/commit-pipeline.js';
import { isReply } from '../redis/redis-client.js';
import type { QueuedCommand } from './lock-transaction.js';

/** Redis' words for "not now, not here": about the server, not about the commands. */
const SERVER_ERRORS =
  /^(READONLY|MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|BUSY|MASTERDOWN|NOREPLICAS|MISCONF|NOAUTH|WRONGPASS)\b/;

/** Of these, the ones that a new connection may mend: it can lead to another server. */
export const REPLACED = /^(READONLY|MASTERDOWN|NOREPLICAS|MISCONF)\b/;

/** Nothing was applied, for a reason that does not lie in the commit: it may pass a moment later. */
export function mayPassLater(answer: CommitAnswer): boolean {
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

/** A script that fails may have written before it did; and what did not fail in Redis has written. */
function hasNoEffect({ command, error }: FailedCommand): boolean {
  return isReply(error) && !/^(eval|fcall|call)/i.test(command);
}

/**
 * Redis does not roll back: what failed is told, and what did not fail stands.
 *
 * @throws LockTransactionError
 */
export function assertReplies(
  replies: readonly unknown[],
  commands: readonly QueuedCommand[],
  resources: readonly string[],
): unknown[] {
  const failures = failed(replies, commands);
  const first = failures[0];
  if (first === undefined) return [...replies];
  const what = `first ${first.command} at ${first.index}: ${first.error.message}`;
  throw new LockTransactionError(
    failures.some(({ error }) => isReply(error))
      ? `${failures.length} of ${commands.length} commands failed inside EXEC, ${what}. Redis does not roll back the others`
      : `The commit was applied, but ${failures.length} of ${commands.length} replies cannot be read, ${what}`,
    {
      applied: failures.length === commands.length && failures.every(hasNoEffect) ? 'none' : 'partial',
      failures,
      replies,
      resources,
      cause: first.error,
    },
  );
}

/** Redis had nothing of it: the text is too long for this process, for example. */
export function unsent(cause: Error, resources: readonly string[]): LockTransactionError {
  return new LockTransactionError(
    `The commit could not be written to the connection: ${cause.message}. Nothing was applied; commit less at a time`,
    { applied: 'none', resources, cause },
  );
}

export function unguarded(
  { replies, error }: Extract<CommitAnswer, { outcome: 'unguarded' }>,
  commands: readonly QueuedCommand[],
  resources: readonly string[],
): LockTransactionError {
  return new LockTransactionError('Redis ran the commands although the lock was not verified', {
    applied: 'partial',
    replies,
    failures: failed(replies, commands),
    resources,
    cause: error,
  });
}

/** Either the transaction was wrong, or Redis could not take any. */
export function refusal(
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
