import { Cluster, Redis } from 'ioredis';
import type { RedisOptions } from 'ioredis';
import { LockConfigurationError } from '../errors/lock.errors.js';
import type { ResolvedModuleOptions } from '../redis-lock.options.js';
import { CommitConnection } from './commit-connection.js';
import type { RedisClient } from './redis-client.js';
import { WakeUpChannel } from './wake-up-channel.js';
import { WatchPool } from './watch-pool.js';

/** By default ioredis keeps the process alive for 2 s after a disconnect from a server that is not there. */
const OWN_CLIENT = { lazyConnect: true, disconnectTimeout: 0 } as const satisfies RedisOptions;

/** Reconnects soon and for ever. Nothing is queued while it is down: LockStore waits, and knows what was not sent. */
const SCRIPTS_CONNECTION = {
  ...OWN_CLIENT,
  retryStrategy: (attempt: number) => Math.min(50 * attempt, 1_000),
  reconnectOnError: null,
  enableOfflineQueue: false,
  enableAutoPipelining: false,
  autoResubscribe: false,
  maxRetriesPerRequest: null,
  commandTimeout: undefined,
  monitor: false,
  readOnly: false,
} as const satisfies RedisOptions;

export interface ConnectionListener {
  /** Once for each outage, not for each attempt to connect. */
  onOutage(error: Error): void;
  /** The lock of this token was handed over to it. */
  onWakeUp(token: string): void;
  /** Messages may have been lost before this. */
  onSubscribed(): void;
}

type Connection = ResolvedModuleOptions['connection'];

/**
 * The connections of one service. What users run their own commands on, their client or ours, is not what leases
 * depend on: a command that blocks there must not hold up a renewal.
 */
export class Connections {
  /** For the user's own commands. */
  readonly client: RedisClient;
  /** For the lock scripts. */
  readonly scripts: RedisClient;
  /** For commits, shared by all of them. */
  readonly commits: CommitConnection;
  /** For commits that depend on watched keys. */
  readonly watches: WatchPool;
  readonly #wakeUps: WakeUpChannel;
  readonly #owned: boolean;
  readonly #onError: (error: Error) => void;
  #outageReported = false;

  /**
   * @param clientId names the channel on which this service hears that its waiters got a lock
   * @throws LockConfigurationError for a client in subscriber mode, or of another library
   */
  constructor(options: ResolvedModuleOptions, clientId: string, listener: ConnectionListener) {
    const { connection, keyPrefix, commandTimeout } = options;
    this.#onError = (error) => {
      if (!this.#outageReported) listener.onOutage(error);
      this.#outageReported = true;
    };
    const borrowed = borrowedClient(connection);
    this.#owned = borrowed === undefined;
    this.client = borrowed ?? this.#connect(connection as Exclude<typeof connection, RedisClient>);

    const duplicate = (overrides: RedisOptions) => duplicateOf(this.client, overrides);
    const commit = { duplicate, keyPrefix, timeout: commandTimeout, onError: this.#onError };
    this.commits = new CommitConnection(commit);
    this.watches = new WatchPool(commit);
    // Redis prefixes keys for the client, but not channels, and the scripts derive the channel from a key.
    const channel = `${this.client.options.keyPrefix ?? ''}${keyPrefix}:wake:${clientId}`;
    this.#wakeUps = new WakeUpChannel(duplicate, channel, {
      onToken: listener.onWakeUp,
      onSubscribed: listener.onSubscribed,
      onError: this.#onError,
    });
    this.scripts = this.client.isCluster ? this.client : this.#watch(duplicate(SCRIPTS_CONNECTION));
  }

  /**
   * Resolves when hand-overs to this service's waiters would be heard; undefined when they would be by now.
   *
   * @throws Redis' error when it refuses the subscription
   */
  subscribed(): Promise<void> | undefined {
    return this.#wakeUps.isReady ? undefined : this.#wakeUps.ready();
  }

  /** Closes what this service opened; a borrowed client stays as it is. */
  async close(): Promise<void> {
    this.#wakeUps.close();
    this.watches.close();
    await this.commits.close();
    if (this.scripts !== this.client) this.scripts.disconnect();
    if (this.#owned) this.client.disconnect();
  }

  #connect(connection: Exclude<Connection, RedisClient>): RedisClient {
    if (typeof connection === 'string') return this.#watch(new Redis(connection, OWN_CLIENT));
    if ('nodes' in connection) return this.#watch(new Cluster(connection.nodes, connection.options));
    return this.#watch(new Redis({ ...connection, ...OWN_CLIENT }));
  }

  #watch<Client extends RedisClient>(client: Client): Client {
    client.on('error', this.#onError);
    client.on('ready', () => (this.#outageReported = false));
    return client;
  }
}

/** Another connection to the same server and database, also after a SELECT. */
function duplicateOf(client: RedisClient, overrides: RedisOptions): Redis {
  if (client.isCluster) {
    throw new LockConfigurationError(
      'Waiting and transactions need a single Redis server so far; got a Redis Cluster',
    );
  }
  const { condition } = client as unknown as { condition?: { select?: number } };
  const db = condition?.select ?? (client as Redis).options.db;
  return (client as Redis).duplicate({ ...overrides, ...(db === undefined ? {} : { db }) });
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
