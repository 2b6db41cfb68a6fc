import type { Command, Redis } from 'ioredis';
import { DeadlineError, within } from './deadline.js';
import { GUARD, SAME_KEYS } from './commit-scripts.js';
import { tokensOf, triples } from './lock-keys.js';
import type { Claim } from './lock-keys.js';
import { decodeRelease } from './lock-replies.js';
import { RELEASE } from './lock-scripts.js';
import { command, commandOf, execOf, sendInOneWrite } from './one-write.js';
import type { Result } from './one-write.js';
import { isReply } from './redis-client.js';
import { commitRecord } from './script-parts.js';

/** A command as ioredis is called for it. */
export interface ClientCommand {
  readonly method: string;
  readonly args: readonly unknown[];
}

export interface CommitRequest {
  readonly claim: Claim;
  /** Of its first resource. */
  readonly fencingToken: number;
  /** Further claims that have to be held, and stay held whatever becomes of this commit. */
  readonly alsoHeld: readonly Claim[];
  /** Which one of the commits under this token it is. */
  readonly number: number;
  /** Where it is recorded, see commitRecord. */
  readonly place: number;
  readonly commands: readonly ClientCommand[];
  /** Keep the lock instead of giving it up. */
  readonly keep: boolean;
}

/** What Redis said to a commit. An error under `refused` or `unanswered` is Redis' own, or the connection's. */
export type CommitAnswer =
  /** EXEC ran. Errors among the replies are those of commands that failed; Redis does not roll back. */
  | {
      readonly outcome: 'applied';
      readonly replies: readonly unknown[];
      /** What its release said of local waiters; undefined when it was not released, and is still there. */
      readonly handedOver: readonly (string | number)[] | undefined;
    }
  /** The lock is not held: nothing was applied, and this commit never will be. */
  | { readonly outcome: 'lost' }
  /** The lock was held, but a watched key changed before EXEC: nothing was applied. */
  | { readonly outcome: 'changed' }
  /** Redis refused to queue or to run the transaction: nothing was applied. `failures`: by which commands. */
  | { readonly outcome: 'refused'; readonly error: Error; readonly failures: readonly (Error | undefined)[] }
  /** It could not be written to the connection: nothing was applied, and this commit never will be. */
  | { readonly outcome: 'unsent'; readonly error: Error }
  /** EXEC was answered although the guard had not passed: the server changed its mind halfway. */
  | { readonly outcome: 'unguarded'; readonly replies: readonly unknown[]; readonly error: Error | undefined }
  /** The connection died or stayed silent; whether EXEC ran has to be settled. */
  | { readonly outcome: 'unanswered'; readonly error: Error };

// Places among the replies.
const WATCH_AT = 0;
const GUARD_AT = 1;
const MULTI_AT = 2;
const FIRST_QUEUED_AT = 3;
/** Commands of our own in the transaction: BLPOP, EVAL, HSET, and EVALSHA where the lock is released. */
const OWN_COMMANDS = 3;

/** What has to reach Redis in one piece: the guard and the first commands behind MULTI; see docs/guarded-commit.md. */
const ONE_SEGMENT = 1_400;
/** Bytes of them that are neither names nor the guard itself, the record of the commit included. */
const FRAMING = 300;

/**
 * Whether the guard's answer has to be read before the transaction is sent, because both do not fit into one network
 * segment: then the connection must not be shared meanwhile.
 *
 * @param clientPrefix which ioredis puts before every key
 */
export function needsTwoSteps(request: CommitRequest, clientPrefix: string): boolean {
  const { owners, guarded, fence } = namesOf(request);
  const prefix = Buffer.byteLength(clientPrefix) + 8;
  const size = (names: readonly string[]) =>
    names.reduce((sum, name) => sum + Buffer.byteLength(name) + prefix, 0);
  return FRAMING + GUARD.text.length + 3 * size(guarded) + size(owners) + 2 * size([fence]) > ONE_SEGMENT;
}

/** Bytes of arguments from which on a commit does not share its connection: those behind it would have to wait. */
const BIG = 1_000_000;

/** Whether the commit should have a connection of its own. */
export function isBig({ commands }: CommitRequest): boolean {
  let bytes = 0;
  const count = (arg: unknown): void => {
    if (typeof arg === 'string') bytes += Buffer.byteLength(arg);
    else if (Buffer.isBuffer(arg)) bytes += arg.length;
    else if (Array.isArray(arg)) for (const each of arg) count(each);
    else if (arg instanceof Map) for (const entry of arg) count(entry);
    else bytes += 8;
  };
  for (const { args } of commands) for (const arg of args) count(arg);
  return bytes >= BIG;
}

/**
 * Sends a guarded commit: one write, one round trip. docs/guarded-commit.md has the reasoning.
 *
 *   WATCH owner.. fence · EVAL guard · MULTI · BLPOP · EVAL · HSET fence · EVALSHA release · the commands · EXEC
 *
 * BLPOP waits on a list that never exists. Inside MULTI it is queued and answers nil; should MULTI have been
 * refused, it blocks the connection, and none of the commands behind it runs outside of a transaction. EVAL and HSET
 * are refused where the guard is; HSET also records the commit.
 *
 * @param redis a connection found in a doubtful state is given to `drop`, which has to destroy it
 * @param twoSteps see {@link needsTwoSteps}; nobody else may use the connection until this has ended
 */
export async function sendCommit(
  redis: Redis,
  request: CommitRequest,
  timeout: number,
  drop: (redis: Redis) => void,
  twoSteps = false,
): Promise<CommitAnswer> {
  const { claim, fencingToken, number, place, commands, keep } = request;
  const { owners, guarded, fence } = namesOf(request);
  const { field, record } = commitRecord(claim.token, fencingToken, number, place);

  const guard = [
    command(redis, 'watch', guarded),
    command(redis, 'eval', [GUARD.text, guarded.length, ...guarded, record, field, fencingToken, ...owners]),
  ];
  const transaction = [
    command(redis, 'multi', []),
    command(redis, 'blpop', [claim.keys[0]?.barrier ?? '', 0]),
    command(redis, 'eval', [SAME_KEYS, guarded.length, ...guarded]),
    command(redis, 'hset', [fence, field, record]),
  ];
  if (!keep) {
    const all = triples(claim.keys);
    transaction.push(command(redis, 'evalsha', [RELEASE.sha, all.length, ...all, tokensOf(claim), '']));
  }
  for (const { method, args } of commands) transaction.push(commandOf(redis, method, args));
  transaction.push(execOf(redis));

  let late: Error | undefined;
  let unsent: Error | undefined;
  const send = async (what: readonly Command[]): Promise<readonly Result[]> => {
    let replies: Promise<Result[]> | undefined;
    try {
      replies = sendInOneWrite(redis, what);
      return await within(timeout, replies);
    } catch (error) {
      drop(redis); // settles every reply that is still missing
      if (replies === undefined) unsent = error as Error;
      if (replies === undefined || !(error instanceof DeadlineError)) return [[error as Error]];
      late = error;
      return replies;
    }
  };
  let results: readonly Result[];
  if (twoSteps) {
    const passed = await send(guard);
    if (!hasPassed(passed)) {
      drop(redis); // rather than UNWATCH: it is rare
      const error = passed[WATCH_AT]?.[0] ?? passed[GUARD_AT]?.[0];
      return error ? { outcome: 'refused', error, failures: [] } : { outcome: 'lost' };
    }
    results = [...passed, ...(await send(transaction))];
  } else {
    results = await send([...guard, ...transaction]);
  }
  if (unsent) return { outcome: 'unsent', error: unsent };
  hideArguments(results);
  const answer = read(results, keep, late);
  // Without MULTI the barrier may still block the connection.
  if (answer.outcome === 'unanswered' || results[MULTI_AT]?.[0]) drop(redis);
  return answer;
}

/** ioredis notes with an error what the command was given: values of users, which have no place in a log. */
function hideArguments(results: readonly Result[]): void {
  for (const [error] of results) {
    const { command } = (error ?? {}) as { command?: { args?: unknown } };
    if (command) delete command.args;
  }
}

function namesOf({ claim, alsoHeld }: CommitRequest) {
  const [owners, guarded]: [string[], string[]] = [[], []];
  for (const { token, keys } of [claim, ...alsoHeld]) {
    for (const { owner } of keys) {
      owners.push(token);
      guarded.push(owner);
    }
  }
  const fence = claim.keys[0]?.fence ?? '';
  guarded.push(fence);
  return { owners, guarded, fence };
}

function hasPassed(results: readonly Result[]): boolean {
  const [error, guard] = results[GUARD_AT] ?? [null];
  return error === null && Number(guard) === 1 && results[WATCH_AT]?.[1] === 'OK';
}

/** Whether the replies are where they should be; where not, nothing can be said about any of them. */
function areInPlace(results: readonly Result[]): boolean {
  return results.slice(0, -1).every(
    ([error, reply], i) =>
      error !== null || i === GUARD_AT || String(reply) === (i < FIRST_QUEUED_AT ? 'OK' : 'QUEUED'), // or a Buffer of that, for getBuffer()
  );
}

function read(results: readonly Result[], keep: boolean, late: Error | undefined): CommitAnswer {
  const [watchError] = results[WATCH_AT] ?? [null];
  const [guardError, guard] = results[GUARD_AT] ?? [null];
  const [multiError] = results[MULTI_AT] ?? [null];
  const [execError, exec] = results.at(-1) ?? [null];
  const own = keep ? OWN_COMMANDS : OWN_COMMANDS + 1;

  if (execError === null && Array.isArray(exec)) {
    const replies = exec.slice(own) as unknown[];
    if (!hasPassed(results))
      return { outcome: 'unguarded', replies, error: watchError ?? guardError ?? undefined };
    const answers: unknown = keep ? undefined : exec[OWN_COMMANDS];
    const released: unknown = Array.isArray(answers) ? answers[0] : undefined;
    const handedOver =
      released === undefined || released instanceof Error ? undefined : decodeRelease(released).handedOver;
    return { outcome: 'applied', replies, handedOver };
  }
  const queued = results.slice(FIRST_QUEUED_AT + own, -1);
  if (multiError !== null && isReply(multiError)) {
    // Without MULTI the barrier blocks, unless it was refused as well: then the commands ran one by one.
    if (execError === null || !isReply(execError))
      return { outcome: 'refused', error: multiError, failures: [] };
    return {
      outcome: 'unguarded',
      replies: queued.map(([error, reply]) => error ?? reply),
      error: multiError,
    };
  }
  if (!areInPlace(results))
    return { outcome: 'unanswered', error: new Error('The replies of Redis are out of step') };
  if (execError === null) {
    if (guardError) return { outcome: 'refused', error: guardError, failures: [] };
    return { outcome: hasPassed(results) ? 'changed' : 'lost' };
  }
  if (isReply(execError)) {
    const failures = hasPassed(results) ? queued.map(([error]) => error ?? undefined) : [];
    const ours = results.slice(0, FIRST_QUEUED_AT + own).find(([error]) => error !== null)?.[0];
    return { outcome: 'refused', error: ours ?? execError, failures };
  }
  if (watchError === null && guardError === null && Number(guard) === 0) return { outcome: 'lost' };
  return { outcome: 'unanswered', error: late ?? execError };
}
