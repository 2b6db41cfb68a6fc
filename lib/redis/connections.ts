import { Cluster, Redis } from 'ioredis';
import type { RedisOptions } from 'ioredis';
import { LockConfigurationError } from '../errors/lock.errors.js';
import type { ResolvedModuleOptions } from '../redis-lock.options.js';
import { ClusterServers } from './cluster-servers.js';
import type { RedisClient } from './redis-client.js';
import type { ServerParts } from './server.js';
import { SingleServer } from './servers.js';
import type { Servers } from './servers.js';
import type { WakeUpMessage } from './wake-up-message.js';

/** By default ioredis keeps the process alive for 2 s after a disconnect from a server that is not there. */
const OWN_CLIENT = { lazyConnect: true, disconnectTimeout: 0 } as const satisfies RedisOptions;

export interface ConnectionListener {
  /** Once for each outage, not for each attempt to connect. */
  onOutage(error: Error): void;
  /** A waiter has to look, or was handed its lock. */
  onWakeUp(message: WakeUpMessage): void;
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
  /** For everything else. */
  readonly servers: Servers;
  readonly #owned: boolean;
  #outageReported = false;

  /**
   * @param clientId names the channel on which this service hears that its waiters got a lock
   * @throws LockConfigurationError for a client in subscriber mode, or of another library
   */
  constructor(options: ResolvedModuleOptions, clientId: string, listener: ConnectionListener) {
    const { connection, keyPrefix, commandTimeout, replicas } = options;
    const onError = (error: Error) => {
      if (!this.#outageReported) listener.onOutage(error);
      this.#outageReported = true;
    };
    const onReady = () => void (this.#outageReported = false);
    const borrowed = borrowedClient(connection);
    this.#owned = borrowed === undefined;
    this.client = borrowed ?? connect(connection as Exclude<Connection, RedisClient>);
    if (this.#owned) this.client.on('error', onError).on('ready', onReady);

    const clientPrefix = this.client.options.keyPrefix ?? '';
    const parts: Omit<ServerParts, 'duplicate' | 'has'> = {
      keyPrefix,
      // Redis prefixes keys for the client, but not channels, and the scripts derive the channel from a key.
      channelOf: (tag) =>
        `${clientPrefix}${keyPrefix}:wake:${tag === undefined ? '' : `{${tag}}:`}${clientId}`,
      commandTimeout,
      replicas,
      listener: { ...listener, onError, onReady, onLost: () => undefined, onMoved: () => undefined },
    };
    this.servers = this.client.isCluster
      ? new ClusterServers(this.client as Cluster, parts)
      : new SingleServer(
          { ...parts, duplicate: (overrides) => duplicateOf(this.client as Redis, overrides) },
          clientPrefix,
        );
  }

  /** Closes what this service opened; a borrowed client stays as it is. */
  async close(): Promise<void> {
    await this.servers.close();
    if (this.#owned) this.client.disconnect();
  }
}

function connect(connection: Exclude<Connection, RedisClient>): RedisClient {
  if (typeof connection === 'string') return new Redis(connection, OWN_CLIENT);
  if ('nodes' in connection) {
    const { options } = connection;
    const redisOptions = { disconnectTimeout: OWN_CLIENT.disconnectTimeout, ...options?.redisOptions };
    return new Cluster(connection.nodes, { ...options, redisOptions, lazyConnect: true });
  }
  return new Redis({ ...connection, ...OWN_CLIENT });
}

/** Another connection to the same server and database, also after a SELECT. */
function duplicateOf(client: Redis, overrides: RedisOptions): Redis {
  const { condition } = client as unknown as { condition?: { select?: number } };
  const db = condition?.select ?? client.options.db;
  return client.duplicate({ ...overrides, ...(db === undefined ? {} : { db }) });
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
