import type { Redis, RedisOptions } from 'ioredis';
import { LockError, LockUnavailableError } from '../errors/lock.errors.js';
import { checkCommitConnection } from './commit-check.js';
import { within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { shown } from './redis-client.js';

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
  readonly isCluster: boolean;
}

/**
 * Opens a connection on which commits can be sent, and tries it out.
 *
 * @throws LockUnavailableError when there is none within the timeout, or Redis does not allow commits on it
 */
export async function openCommitConnection(parts: CommitConnectionParts): Promise<Redis> {
  const { duplicate, keyPrefix, unusedKeys, timeout, isCluster } = parts;
  const redis = duplicate({ ...OPTIONS, connectTimeout: timeout });
  let lastWord: Error | undefined; // ioredis itself only says that the connection is closed
  redis.on('error', (error: Error) => (lastWord = shown(error)));
  try {
    await within(timeout, redis.connect());
    await checkCommitConnection(redis, keyPrefix, unusedKeys(), timeout, isCluster);
    return redis;
  } catch (error) {
    redis.disconnect();
    if (error instanceof LockError) throw error;
    throw unavailable(lastWord ?? error);
  }
}

/**
 * The connection that all commits share: opened when first needed, and anew after it was lost, dropped or retired.
 * Many use it together; who needs it alone gets it in turn, and so do those who come after.
 */
export class CommitConnection {
  readonly #parts: CommitConnectionParts;
  #opening: Promise<Redis> | undefined;
  #open: Redis | undefined;
  #closed = false;
  #isAlone = false;
  /** Each starts a task, which sends what it has to send at once. */
  readonly #turns: (() => void)[] = [];
  /** How many tasks use each connection. */
  readonly #users = new Map<Redis, number>();
  readonly #retired = new Set<Redis>();

  constructor(parts: CommitConnectionParts) {
    this.#parts = parts;
  }

  /** @throws LockUnavailableError when there is no connection within the timeout */
  async open(): Promise<void> {
    await this.#get();
  }

  /**
   * Has the task use the connection, along with others. What it sends before its first await is sent in one go.
   *
   * @throws LockUnavailableError when there is no connection within the timeout
   */
  share<T>(task: (redis: Redis) => Promise<T>): Promise<T> {
    const free = !this.#isAlone && this.#turns.length === 0;
    if (free && this.#open?.status === 'ready' && !this.#closed) return this.#use(this.#open, task);
    return this.#inTurn(false, task);
  }

  /**
   * Has the task use the connection while nobody else sends anything. Those who have sent their commits before are
   * answered meanwhile.
   *
   * @throws LockUnavailableError when there is no connection within the timeout
   */
  alone<T>(task: (redis: Redis) => Promise<T>): Promise<T> {
    return this.#inTurn(true, task);
  }

  /** Destroys a connection in a doubtful state: every reply still pending on it is settled with an error. */
  drop(redis: Redis): void {
    if (this.#open === redis) this.#open = undefined;
    this.#retired.delete(redis);
    if (redis.status !== 'end') redis.disconnect();
  }

  /** Uses another connection from here on; this one ends when those who use it have been answered. */
  retire(redis: Redis): void {
    if (this.#open === redis) this.#open = undefined;
    if (this.#users.has(redis)) this.#retired.add(redis);
    else this.drop(redis);
  }

  /** Uses another connection from here on: it may lead to another server. */
  renew(): void {
    if (this.#open) this.retire(this.#open);
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#opening?.catch(() => undefined); // one that never opened needs no closing
    for (const redis of [this.#open, ...this.#retired]) redis?.disconnect();
  }

  async #inTurn<T>(alone: boolean, task: (redis: Redis) => Promise<T>): Promise<T> {
    const redis = await this.#get();
    return new Promise<T>((resolve, reject) => {
      this.#turns.push(() => {
        this.#isAlone = alone;
        const done =
          redis.status === 'ready'
            ? this.#use(redis, task)
            : Promise.reject(unavailable(new Error('The connection was lost before the commit was sent')));
        const ended = alone ? done.finally(() => this.#endAlone()) : done;
        ended.then(resolve, reject);
      });
      this.#startNext();
    });
  }

  #endAlone(): void {
    this.#isAlone = false;
    this.#startNext();
  }

  #startNext(): void {
    while (!this.#isAlone) {
      const start = this.#turns.shift();
      if (start === undefined) return;
      start();
    }
  }

  async #use<T>(redis: Redis, task: (redis: Redis) => Promise<T>): Promise<T> {
    this.#users.set(redis, (this.#users.get(redis) ?? 0) + 1);
    try {
      return await task(redis);
    } finally {
      const others = (this.#users.get(redis) ?? 1) - 1;
      if (others > 0) this.#users.set(redis, others);
      else {
        this.#users.delete(redis);
        if (this.#retired.has(redis)) this.drop(redis);
      }
    }
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

function unavailable(cause: unknown): LockUnavailableError {
  return new LockUnavailableError(`No connection to Redis for the commit: ${String(cause)}`, { cause });
}
