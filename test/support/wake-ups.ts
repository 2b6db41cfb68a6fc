import { createHash } from 'node:crypto';
import { nameOf } from '../../lib/redis/tokens.js';

/**
 * What a script sends to the waiter that has the token, see `tell` in script-parts.ts: only that it has to ask, or, with a
 * fencing token, that it was handed the lock.
 */
export function messageTo(token: string, owner: string, fencingToken?: number, run = ''): string {
  if (fencingToken === undefined) return JSON.stringify([nameOf(token), '', '', '', owner]);
  const number = String(fencingToken);
  const seal = createHash('sha1').update([number, run, owner, token].join('\n')).digest('hex');
  return JSON.stringify([nameOf(token), number, seal, run, owner]);
}

/** The channel of a waiter's client. */
export function channelOf(prefix: string, token: string): string {
  return `${prefix}:wake:${token.split(':')[0]}`;
}
