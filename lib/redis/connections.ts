import { Cluster, Redis } from 'ioredis';
import type { RedisOptions } from 'ioredis';
import { LockConfigurationError, LockError, LockUnavailableError } from '../errors/lock.errors.js';
import type { ResolvedModuleOptions } from '../redis-lock.options.js';
import { checkCommitConnection } from './commit-check.js';
import { within } from './deadline.js';

export type RedisClient = Redis | Cluster;

type Connection = ResolvedModuleOptions['connection'];

/** By default ioredis keeps the process alive for 2 s after a disconnect from a server that is not there. */
const OWN_CONNECTION = { disconnectTimeout: 0 } as const satisfies RedisOptions;

/** What the commit connection must not inherit: it never reconnects, resends, queues or times out by itself. */
const COMMIT_CONNECTION = {
  ...OWN_CONNECTION,
  lazyConnect: true,
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
  disconnectTimeout: 0,
  monitor: false,
  readOnly: false,
} as const satisfies RedisOptions;

/**
 * The connections of one service: the client that everything immediate goes through, the user's or our own, and one
 * connection for commits, always our own, made when first needed and made anew after it was lost.
 */
export class Connections {
  readonly client: RedisClient;
  readonly #owned: boolean;
  readonly #keyPrefix: string;
  readonly #commandTimeout: number;
  readonly #onError: (error: Error) => void;
  #outageReported = false;
  #commit: Promise<Redis> | undefined;
  #closed = false;

  /**
   * @param onOutage told once for each outage, not for each attempt to connect
   * @throws LockConfigurationError for a client in subscriber mode, or of another library
   */
  constructor(options: ResolvedModuleOptions, onOutage: (error: Error) => void) {
    const { connection, keyPrefix, commandTimeout } = options;
    this.#keyPrefix = keyPrefix;
    this.#commandTimeout = commandTimeout;
    this.#onError = (error) => {
      if (!this.#outageReported) onOutage(error);
      this.#outageReported = true;
    };
    const borrowed = borrowedClient(connection);
    this.#owned = borrowed === undefined;
    this.client = borrowed ?? this.#connect(connection as Exclude<typeof connection, RedisClient>);
  }

  /**
   * The connection for commits, ready. Whoever finds it in a doubtful state calls {@link dropCommitConnection}.
   *
   * @throws LockUnavailableError when there is none within commandTimeout.
   */
  async commitConnection(): Promise<Redis> {
    if (this.#closed) throw new LockUnavailableError('The connections to Redis are closed');
    this.#commit ??= this.#openCommitConnection();
    const opened = this.#commit;
    try {
      const redis = await opened;
      if (redis.status === 'ready') return redis;
    } catch (error) {
      if (this.#commit === opened) this.#commit = undefined;
      if (error instanceof LockError) throw error;
      throw new LockUnavailableError(`No connection to Redis for the commit: ${String(error)}`, {
        cause: error,
      });
    }
    if (this.#commit === opened) this.#commit = undefined;
    return this.commitConnection();
  }

  /** Destroys the connection: every reply still pending on it is settled with an error. */
  dropCommitConnection(redis: Redis): void {
    this.#commit = undefined;
    redis.disconnect();
  }

  /** Closes what this service opened; a borrowed client stays as it is. */
  async close(): Promise<void> {
    this.#closed = true;
    const commit = await this.#commit?.catch(() => undefined); // one that never opened needs no closing
    commit?.disconnect();
    if (this.#owned) this.client.disconnect();
  }

  #connect(connection: Exclude<Connection, RedisClient>): RedisClient {
    let client: RedisClient;
    if (typeof connection === 'string') client = new Redis(connection, OWN_CONNECTION);
    else if ('nodes' in connection) client = new Cluster(connection.nodes, connection.options);
    else client = new Redis({ ...OWN_CONNECTION, ...connection });
    client.on('error', this.#onError);
    client.on('ready', () => (this.#outageReported = false));
    return client;
  }

  async #openCommitConnection(): Promise<Redis> {
    if (this.client.isCluster) {
      throw new LockConfigurationError('Transactions need a single Redis server so far; got a Redis Cluster');
    }
    const redis = (this.client as Redis).duplicate({
      ...COMMIT_CONNECTION,
      connectTimeout: this.#commandTimeout,
    });
    redis.on('error', this.#onError);
    try {
      await within(this.#commandTimeout, redis.connect());
      await checkCommitConnection(redis, this.#keyPrefix, this.#commandTimeout);
    } catch (error) {
      redis.disconnect();
      throw error;
    }
    if (this.#closed) redis.disconnect();
    return redis;
  }
}

/** The client in `connection`, told by its shape: `instanceof` fails between two copies of ioredis. */
function borrowedClient(connection: Connection): RedisClient | undefined {
  if (typeof connection === 'string') return undefined;
  const shape = connection as Partial<Record<string, unknown>>;
  const looksLikeClient = ['connect', 'on', 'sendCommand'].some((name) => typeof shape[name] === 'function');
  if (!looksLikeClient) return undefined;
  const isClient =
    ['evalsha', 'eval', 'duplicate', 'disconnect'].every((name) => typeof shape[name] === 'function') &&
    typeof shape['status'] === 'string';
  if (!isClient) {
    throw new LockConfigurationError(
      'Option "connection" of RedisLockModule is a client, but none of ioredis',
    );
  }
  const mode = shape['mode'];
  if (mode === 'subscriber' || mode === 'monitor') {
    throw new LockConfigurationError(
      `Option "connection" of RedisLockModule is a client in ${mode} mode, which cannot run commands; give another one`,
    );
  }
  return connection as RedisClient;
}
