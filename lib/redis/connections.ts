import type { Cluster, ClusterOptions, Redis, RedisOptions } from 'ioredis';
import { LockConfigurationError } from '../errors/lock.errors.js';
import type { ResolvedModuleOptions } from '../redis-lock.options.js';
import { ClusterServers } from './cluster-servers.js';
import type { DuplicateOf } from './cluster-servers.js';
import { authenticateLike } from './credentials.js';
import { OutageReports } from './outage-reports.js';
import type { OutageListener } from './outage-reports.js';
import { connect } from './own-client.js';
import type { RedisClient } from './redis-client.js';
import type { ServerParts } from './server.js';
import { SingleServer } from './servers.js';
import type { Servers } from './servers.js';
import type { WakeUpMessage } from './wake-up-message.js';

/** Part of commandTimeout that the function in option `credentials` may take: the rest is for the connection itself. */
const ASKING = 1 / 2;

export interface ConnectionListener extends OutageListener {
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

  /**
   * @param clientId names the channel on which this service hears that its waiters got a lock
   * @throws LockConfigurationError for a client in subscriber mode, one of another library, or one that reads from replicas
   */
  constructor(options: ResolvedModuleOptions, clientId: string, listener: ConnectionListener) {
    const { connection, keyPrefix, commandTimeout, replicas, credentials } = options;
    const reports = new OutageReports(listener);
    const borrowed = borrowedClient(connection);
    if (borrowed && credentials) {
      throw new LockConfigurationError(
        'Option "credentials" of RedisLockModule is of no use with a client of yours: connections made from it ' +
          'take the username and password that its options have when they connect',
      );
    }
    this.#owned = borrowed === undefined;
    this.client =
      borrowed ??
      connect(connection as Exclude<Connection, RedisClient>, credentials, commandTimeout * ASKING);
    assertReadsFromPrimary(this.client);
    if (this.#owned) reports.watch(this.client);

    const clientPrefix = this.client.options.keyPrefix ?? '';
    const duplicateOf: DuplicateOf = (redis, overrides, optionsNow) => {
      const own = redis.duplicate(overrides);
      if (!credentials) authenticateLike(own, optionsNow);
      reports.watch(own);
      return own;
    };
    const nothing = () => undefined;
    const parts: Omit<ServerParts, 'duplicate' | 'has'> = {
      keyPrefix,
      // Redis prefixes keys for the client, but not channels, and the scripts derive the channel from a key.
      channelOf: (tag) =>
        `${clientPrefix}${keyPrefix}:wake:${tag === undefined ? '' : `{${tag}}:`}${clientId}`,
      commandTimeout,
      replicas,
      listener: {
        onWakeUp: (...told) => listener.onWakeUp(...told),
        onSubscribed: () => listener.onSubscribed(),
        onReady: nothing,
        onLost: nothing,
        onMoved: nothing,
        onRenewal: () => this.#renewClient(),
      },
    };
    if (this.client.isCluster) {
      this.servers = new ClusterServers(this.client as Cluster, parts, duplicateOf);
      return;
    }
    const client = this.client as Redis;
    const db = databaseOf(client);
    const duplicate = (overrides: RedisOptions) =>
      duplicateOf(client, { ...overrides, ...(db === undefined ? {} : { db }) }, () => client.options);
    this.servers = new SingleServer({ ...parts, duplicate }, clientPrefix);
  }

  /** Our own client goes where the locks go; one that was lent is its owner's concern. */
  #renewClient(): void {
    const { client } = this;
    if (!this.#owned || client.isCluster || client.status !== 'ready') return;
    const { retryStrategy } = client.options as RedisOptions;
    if (typeof retryStrategy === 'function') client.disconnect(true); // otherwise that would be its end
  }

  /** Closes what this service opened; a borrowed client stays as it is. */
  async close(): Promise<void> {
    await this.servers.close();
    if (this.#owned) this.client.disconnect();
  }
}

/** Of the client at this moment, also after a SELECT: that is where the locks are, whatever it selects later. */
function databaseOf(client: Redis): number | undefined {
  const { condition } = client as unknown as { condition?: { select?: number } };
  return condition?.select ?? client.options.db;
}

/** @throws LockConfigurationError: a replica may not know yet what the holder before has committed */
function assertReadsFromPrimary({ isCluster, options }: RedisClient): void {
  const { scaleReads, role, readOnly } = options as ClusterOptions & RedisOptions;
  const wrong =
    isCluster && scaleReads !== undefined && scaleReads !== 'master'
      ? `scaleReads: ${typeof scaleReads === 'function' ? 'a function' : `'${scaleReads}'`}`
      : role === 'slave'
        ? "role: 'slave'"
        : readOnly
          ? 'readOnly: true'
          : undefined;
  if (wrong === undefined) return;
  const right = isCluster
    ? "scaleReads: 'master'"
    : wrong.startsWith('role')
      ? "role: 'master'"
      : 'readOnly: false';
  throw new LockConfigurationError(
    `Option "connection" of RedisLockModule reads from replicas (${wrong}), which may not know yet what the last holder ` +
      `of a lock has written; give it ${right}, or a client of its own that has`,
  );
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
