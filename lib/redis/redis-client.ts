import { types } from 'node:util';
import { ReplyError } from 'ioredis';
import type { Cluster, Redis } from 'ioredis';

export type RedisClient = Redis | Cluster;

/** An error that Redis answered, first by its name: `instanceof` fails between two copies of ioredis. */
export function isReply(error: Error): boolean {
  return error.name === 'ReplyError' || error instanceof ReplyError;
}

/**
 * The word that an error of Redis begins with. Before Redis 7, the error of a command inside of a script has the line of the
 * script in front of it: `@user_script: 12: -READONLY ..`.
 */
function wordOf(error: unknown): string {
  if (!(error instanceof Error) || !isReply(error)) return '';
  return /^(?:.*@user_script: \d+: -)?([A-Z]+)\b/s.exec(error.message)?.[1] ?? '';
}

/** What a server says of keys that it does not have, or not all of, or must not write. */
export function isElsewhere(error: Error): boolean {
  return /^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|READONLY|MASTERDOWN|LOADING)$/.test(wordOf(error));
}

/** A grant counts only when replicas have confirmed it, and too few have. */
export class UnconfirmedError extends Error {
  override readonly name = 'UnconfirmedError';
}

/** Whether something was refused for a reason that lies in the state of servers, and passes. */
export function isPassing(error: unknown): boolean {
  if (error instanceof UnconfirmedError) return true;
  const word = wordOf(error);
  return (
    /^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|READONLY|MASTERDOWN|LOADING)$/.test(word) ||
    /^(BUSY|OOM|MISCONF|NOREPLICAS|NOAUTH|WRONGPASS)$/.test(word)
  );
}

/** Refused, before anything was done, by a server that was replaced: a new connection may lead to the new one. */
export function isReplaced(error: Error): boolean {
  return /^(READONLY|MASTERDOWN)$/.test(wordOf(error));
}

/**
 * An error of a connection as it may be shown: ioredis notes with an error what the command was given, passwords and
 * values of users; Node says nothing in the message where a host name has several addresses; and its errors are no
 * instances of Error for an application that runs in a context of its own, as under Jest.
 */
export function shown(error: Error): Error {
  const { command, errors } = error as { command?: { args?: unknown }; errors?: unknown };
  if (command) delete command.args;
  const last: unknown = Array.isArray(errors) ? errors.at(-1) : undefined;
  const said = types.isNativeError(last) ? last : error;
  return said instanceof Error ? said : Object.assign(new Error((said as Error).message), said);
}
