import type { Redis, RedisOptions } from 'ioredis';
import { LockError, LockUnavailableError } from '../errors/lock.errors.js';
import { checkCommitConnection } from './commit-check.js';
import { within } from './deadline.js';

/** What it must not inherit: it never reconnects, resends, queues or times out by itself. */
const OPTIONS = {
  lazyConnect: true,
  disconnectTimeout: 0,
  retryStrategy: null,
  reconnectOnError: null,
  enableOfflineQueue: false,
  enableAutoPipelining: false,
  enableReadyCheck: false,
  autoResendUnfulfilledCommands: false,
  autoResubscribe: false,
  maxRetriesPerRequest: null,
  commandTimeout: undefined,
  blockingTimeout: undefined,
  monitor: false,
  readOnly: false,
} as const satisfies RedisOptions;

export interface CommitConnectionParts {
  /** Makes a connection to where the locks are. */
  readonly duplicate: (options: RedisOptions) => Redis;
  readonly keyPrefix: string;
  readonly timeout: number;
  readonly onError: (error: Error) => void;
}

/** A connection for commits: made and tried out when first needed, and made anew after it was lost or dropped. */
export class CommitConnection {
  readonly #parts: CommitConnectionParts;
  #opening: Promise<Redis> | undefined;
  #open: Redis | undefined;
  #closed = false;
  #last: Promise<unknown> = Promise.resolve();

  constructor(parts: CommitConnectionParts) {
    this.#parts = parts;
  }

  /** @throws LockUnavailableError when there is none within the timeout */
  async get(): Promise<Redis> {
    if (this.#closed) throw new LockUnavailableError('The connections to Redis are closed');
    if (this.#open?.status === 'ready') return this.#open;
    this.#opening ??= this.#connect().finally(() => (this.#opening = undefined));
    try {
      return await this.#opening;
    } catch (error) {
      if (error instanceof LockError) throw error;
      const message = `No connection to Redis for the commit: ${String(error)}`;
      throw new LockUnavailableError(message, { cause: error });
    }
  }

  /** Has the task use the connection while nobody else does. */
  exclusively<T>(task: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(task);
    this.#last = turn.catch(() => undefined); // the caller hears of it
    return turn;
  }

  /** Destroys a connection: every reply still pending on it is settled with an error. */
  drop(redis: Redis): void {
    if (this.#open === redis) this.#open = undefined;
    redis.disconnect();
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#opening?.catch(() => undefined); // one that never opened needs no closing
    this.#open?.disconnect();
  }

  async #connect(): Promise<Redis> {
    const { duplicate, keyPrefix, timeout, onError } = this.#parts;
    const redis = duplicate({ ...OPTIONS, connectTimeout: timeout });
    redis.on('error', onError);
    try {
      await within(timeout, redis.connect());
      await checkCommitConnection(redis, keyPrefix, timeout);
    } catch (error) {
      redis.disconnect();
      throw error;
    }
    this.#open = redis;
    return redis;
  }
}
