import type { Redis } from 'ioredis';
import { DeadlineError, within } from './deadline.js';
import { FINISH, GUARD } from './lock-scripts.js';
import { triples } from './lock-store.js';
import type { Claim } from './lock-store.js';

/** A command as ioredis is called for it. */
export interface ClientCommand {
  readonly method: string;
  readonly args: readonly unknown[];
}

export interface CommitRequest {
  readonly claim: Claim;
  /** `<token>#<n>`, new for each commit. */
  readonly id: string;
  readonly commands: readonly ClientCommand[];
  /** Keep the lock instead of giving it up. */
  readonly keep: boolean;
}

/** What Redis said to a commit. An error under `refused` or `unanswered` is Redis' own, or the connection's. */
export type CommitAnswer =
  /** EXEC ran. Errors among the replies are those of commands that failed; Redis does not roll back. */
  | { readonly outcome: 'applied'; readonly replies: readonly unknown[]; readonly released: boolean }
  /** The lock is not held: nothing was applied, and this commit never will be. */
  | { readonly outcome: 'lost' }
  /** The lock was held, but a watched key changed before EXEC: nothing was applied. */
  | { readonly outcome: 'changed' }
  /** Redis refused to queue or to run the transaction: nothing was applied. `failures`: by which commands. */
  | { readonly outcome: 'refused'; readonly error: Error; readonly failures: readonly (Error | undefined)[] }
  /** EXEC was answered although the guard had not passed: the server changed its mind halfway. */
  | { readonly outcome: 'unguarded'; readonly replies: readonly unknown[]; readonly error: Error | undefined }
  /** The connection died or stayed silent; whether EXEC ran has to be settled. */
  | { readonly outcome: 'unanswered'; readonly error: Error };

type Result = readonly [error: Error | null, reply?: unknown];

// Places in the pipeline.
const WATCH_AT = 0;
const GUARD_AT = 1;
const MULTI_AT = 2;
const FIRST_COMMAND_AT = 6;
// Places in the reply of EXEC.
const FINISH_REPLY_AT = 2;
const FIRST_REPLY_AT = 3;

/**
 * Sends a guarded commit: one write, one round trip. docs/guarded-commit.md has the reasoning.
 *
 *   WATCH owner.. fence · EVAL guard · MULTI · BLPOP · HSET fence · EVAL finish · the commands · EXEC
 *
 * BLPOP waits on a list that never exists. Inside MULTI it is queued and answers nil; should MULTI have been
 * refused, it blocks the connection, and none of the commands behind it runs outside of a transaction.
 *
 * A connection found in a doubtful state is given to `drop`, which has to destroy it.
 */
export async function sendCommit(
  redis: Redis,
  request: CommitRequest,
  timeout: number,
  drop: (redis: Redis) => void,
): Promise<CommitAnswer> {
  const { claim, id, commands, keep } = request;
  const first = claim.keys[0];
  if (first === undefined) throw new RangeError('A claim without a resource cannot be committed');
  const guarded = [...claim.keys.map(({ owner }) => owner), first.fence];
  const all = triples(claim.keys);

  const pipeline = redis.pipeline();
  pipeline.watch(...guarded);
  pipeline.eval(GUARD.text, guarded.length, ...guarded, claim.token, id);
  (pipeline as unknown as { multi(): unknown }).multi(); // missing in ioredis' types
  pipeline.blpop(`${first.fence}:barrier`, 0);
  pipeline.hset(first.fence, 'guard', id);
  pipeline.eval(FINISH.text, all.length, ...all, claim.token, id, keep ? 1 : 0);
  for (const { method, args } of commands) {
    (pipeline as unknown as Record<string, (...args: readonly unknown[]) => unknown>)[method]?.(...args);
  }
  void pipeline.exec(); // within multi(): queues EXEC

  const sent = pipeline.exec() as Promise<Result[]>;
  let late: Error | undefined;
  const results = await within(timeout, sent).catch((error: Error) => {
    if (!(error instanceof DeadlineError)) throw error;
    late = error;
    drop(redis); // settles every reply that is still missing
    return sent;
  });
  const answer = read(results, commands.length, late);
  if (answer.outcome === 'unanswered' || (answer.outcome === 'refused' && !isExecAbort(answer.error)))
    drop(redis);
  return answer;
}

function read(results: readonly Result[], commands: number, late: Error | undefined): CommitAnswer {
  const [watchError] = results[WATCH_AT] ?? [null];
  const [guardError, guard] = results[GUARD_AT] ?? [null];
  const [multiError] = results[MULTI_AT] ?? [null];
  const [execError, exec] = results.at(-1) ?? [null];
  const passed = guardError === null && Number(guard) === 1;

  if (execError === null && Array.isArray(exec)) {
    const replies = exec.slice(FIRST_REPLY_AT) as unknown[];
    if (!passed) return { outcome: 'unguarded', replies, error: watchError ?? guardError ?? undefined };
    return { outcome: 'applied', replies, released: !(exec[FINISH_REPLY_AT] instanceof Error) };
  }
  if (execError === null) {
    if (guardError) return { outcome: 'refused', error: guardError, failures: [] };
    return { outcome: passed ? 'changed' : 'lost' };
  }
  if (multiError !== null && isReply(multiError)) {
    // Without MULTI the barrier blocks, unless it was refused as well: then the commands ran one by one.
    if (!isReply(execError)) return { outcome: 'refused', error: multiError, failures: [] };
    const replies = results.slice(FIRST_COMMAND_AT, -1).map(([error, reply]) => error ?? reply);
    return { outcome: 'unguarded', replies, error: multiError };
  }
  if (isReply(execError)) {
    const queued = results.slice(FIRST_COMMAND_AT, FIRST_COMMAND_AT + commands);
    const failures = passed ? queued.map(([error]) => error ?? undefined) : [];
    const own = results.slice(0, FIRST_COMMAND_AT).find(([error]) => error !== null)?.[0];
    return { outcome: 'refused', error: own ?? execError, failures };
  }
  if (guardError === null && Number(guard) === 0) return { outcome: 'lost' };
  return { outcome: 'unanswered', error: late ?? execError };
}

/** An error that Redis answered, told by its name: `instanceof` fails between two copies of ioredis. */
function isReply(error: Error): boolean {
  return error.name === 'ReplyError';
}

function isExecAbort(error: Error): boolean {
  return error.message.startsWith('EXECABORT');
}
