import { ReplyError } from 'ioredis';
import type { Cluster, Redis } from 'ioredis';

export type RedisClient = Redis | Cluster;

/** An error that Redis answered, first by its name: `instanceof` fails between two copies of ioredis. */
export function isReply(error: Error): boolean {
  return error.name === 'ReplyError' || error instanceof ReplyError;
}
