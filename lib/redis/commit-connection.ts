import type { Redis, RedisOptions } from 'ioredis';
import { LockError, LockUnavailableError } from '../errors/lock.errors.js';
import { checkCommitConnection } from './commit-check.js';
import { within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';

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
  /** Keys that nobody uses, where the server has them. */
  readonly unusedKeys: () => ResourceKeys;
  readonly timeout: number;
  readonly onError: (error: Error) => void;
}

/**
 * Opens a connection on which commits can be sent, and tries it out.
 *
 * @throws LockUnavailableError when there is none within the timeout, or Redis does not allow commits on it
 */
export async function openCommitConnection(parts: CommitConnectionParts): Promise<Redis> {
  const { duplicate, keyPrefix, unusedKeys, timeout, onError } = parts;
  const redis = duplicate({ ...OPTIONS, connectTimeout: timeout });
  redis.on('error', onError);
  try {
    await within(timeout, redis.connect());
    await checkCommitConnection(redis, keyPrefix, unusedKeys(), timeout);
    return redis;
  } catch (error) {
    redis.disconnect();
    if (error instanceof LockError) throw error;
    const message = `No connection to Redis for the commit: ${String(error)}`;
    throw new LockUnavailableError(message, { cause: error });
  }
}

/** The connection that all commits share: opened when first needed, and anew after it was lost or dropped. */
export class CommitConnection {
  readonly #parts: CommitConnectionParts;
  #opening: Promise<Redis> | undefined;
  #open: Redis | undefined;
  #closed = false;
  /** Settled when the last one that wants it alone has had it. */
  #alone: Promise<void> | undefined;

  constructor(parts: CommitConnectionParts) {
    this.#parts = parts;
  }

  /** @throws LockUnavailableError when there is no connection within the timeout */
  async open(): Promise<void> {
    await this.#get();
  }

  /**
   * Has the task use the connection, along with others. It is called when the connection is there, and what it
   * sends before its first await is sent in one go.
   *
   * @throws LockUnavailableError when there is no connection within the timeout
   */
  share<T>(task: (redis: Redis) => Promise<T>): Promise<T> {
    if (this.#open?.status === 'ready' && !this.#alone && !this.#closed) return task(this.#open);
    return this.#shareLater(task);
  }

  async #shareLater<T>(task: (redis: Redis) => Promise<T>): Promise<T> {
    let redis = await this.#get();
    while (this.#alone) {
      await this.#alone;
      redis = await this.#get();
    }
    return task(redis);
  }

  /**
   * Has the task use the connection while nobody else does. Others who have sent their commits before are answered
   * meanwhile.
   *
   * @throws LockUnavailableError when there is no connection within the timeout
   */
  alone<T>(task: (redis: Redis) => Promise<T>): Promise<T> {
    const turn = (this.#alone ?? Promise.resolve()).then(async () => task(await this.#get()));
    const ended = turn
      .then(
        () => undefined,
        () => undefined, // the caller hears of it
      )
      .then(() => {
        if (this.#alone === ended) this.#alone = undefined;
      });
    this.#alone = ended;
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

  async #get(): Promise<Redis> {
    if (this.#closed) throw new LockUnavailableError('The connections to Redis are closed');
    if (this.#open?.status === 'ready') return this.#open;
    this.#opening ??= openCommitConnection(this.#parts)
      .then((redis) => (this.#open = redis))
      .finally(() => (this.#opening = undefined));
    return this.#opening;
  }
}
