import { ReplyError } from 'ioredis';
import type { Cluster, Redis } from 'ioredis';

export type RedisClient = Redis | Cluster;

/** An error that Redis answered, first by its name: `instanceof` fails between two copies of ioredis. */
export function isReply(error: Error): boolean {
  return error.name === 'ReplyError' || error instanceof ReplyError;
}

/** What a server says of keys that it does not have, or not all of, or must not write. */
export function isElsewhere(error: Error): boolean {
  return (
    /^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|READONLY|MASTERDOWN|LOADING)\b/.test(error.message) && isReply(error)
  );
}

/** Whether Redis refused something for a reason that lies in the server's state, and passes. */
export function isPassing(error: unknown): boolean {
  if (!(error instanceof Error) || !isReply(error)) return false;
  return isElsewhere(error) || /^(BUSY|OOM|MISCONF|NOREPLICAS|NOAUTH)\b/.test(error.message);
}
