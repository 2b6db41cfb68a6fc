import { randomUUID } from 'node:crypto';
import type { Redis, RedisOptions } from 'ioredis';
import { CommitConnection } from './commit-connection.js';
import { DeadlineError, within } from './deadline.js';
import { ResourceKeys } from './lock-keys.js';
import { ScriptRunner } from './script-runner.js';
import { WakeUps } from './wake-ups.js';
import type { WakeUpMessage } from './wake-up-message.js';
import { WatchPool } from './watch-pool.js';

/** Reconnects soon and for ever. Nothing is queued while it is down: ScriptRunner waits, and knows what was not sent. */
const SCRIPTS_CONNECTION = {
  lazyConnect: true,
  disconnectTimeout: 0,
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

/** Connections for watch(); with them a service has 12 to a server at most, the user's client included. */
const POOL_SIZE = 8;

/** To find a key that a server has, however few slots it has of all. */
const MAX_TRIES = 100_000;

export interface ServerListener {
  onError(error: Error): void;
  /** The connection for scripts is there, or there again. */
  onReady(): void;
  /** The connection for scripts was lost: what was under way may be sent again. */
  onLost(): void;
  /** A waiter has to look, or was handed its lock. */
  onWakeUp(message: WakeUpMessage): void;
  /** Messages may have been lost before this. */
  onSubscribed(): void;
  /** A slot is not there any more. */
  onMoved(): void;
}

export interface ServerParts {
  /** Makes a connection to the server. */
  readonly duplicate: (options: RedisOptions) => Redis;
  readonly keyPrefix: string;
  /** Whether the server has these keys; default: it has all. */
  readonly has?: (keys: ResourceKeys) => boolean;
  /** Slot of a key; default: there is no cluster. */
  readonly slotOf?: (name: string) => number | undefined;
  /** On which this service hears that its waiters got a lock; of a tag: in a cluster, those of one slot. */
  readonly channelOf: (tag?: string) => string;
  readonly commandTimeout: number;
  /** That have to confirm what is acquired. */
  readonly replicas: number;
  readonly listener: ServerListener;
}

/** The connections of one lock service to one Redis server: each for one purpose, 11 at most. */
export class Server {
  /** For the lock scripts. */
  readonly runner: ScriptRunner;
  /** For what takes locks: the same, unless replicas have to confirm that, for WAIT blocks a connection. */
  readonly acquires: ScriptRunner;
  /** For commits, shared by all of them. */
  readonly commits: CommitConnection;
  /** For commits that depend on watched keys. */
  readonly watches: WatchPool;
  readonly wakeUps: WakeUps;
  readonly #commandTimeout: number;
  #learning: Promise<void> | undefined;
  #version = 0;

  constructor(parts: ServerParts) {
    const { duplicate, keyPrefix, commandTimeout, replicas, listener } = parts;
    const { slotOf = () => undefined } = parts;
    this.#commandTimeout = commandTimeout;
    const onError = (error: Error) => listener.onError(error);
    const commit = {
      duplicate,
      keyPrefix,
      unusedKeys: () => unusedKeys(parts),
      timeout: commandTimeout,
      isCluster: parts.slotOf !== undefined,
      onError,
    };
    this.commits = new CommitConnection(commit);
    this.watches = new WatchPool(commit, replicas > 0 ? POOL_SIZE - 1 : POOL_SIZE);
    this.wakeUps = new WakeUps(duplicate, commandTimeout, {
      onWakeUp: (message) => listener.onWakeUp(message),
      onSubscribed: () => listener.onSubscribed(),
      onMoved: () => listener.onMoved(),
      onError,
    });
    const connect = () => {
      const redis = duplicate(SCRIPTS_CONNECTION);
      redis.on('error', onError);
      redis.on('ready', () => {
        if (parts.slotOf) this.#learning = this.#learnVersion(redis);
        listener.onReady();
      });
      redis.on('close', () => listener.onLost());
      return new ScriptRunner(redis, commandTimeout, slotOf);
    };
    this.runner = connect();
    this.acquires = replicas > 0 ? connect() : this.runner;
  }

  /** Opens what every lock needs, and tries it out; fails when guarded commits are not to be had. */
  async open(): Promise<void> {
    const ready = within(this.#commandTimeout, this.runner.ready() ?? Promise.resolve());
    const known = ready.then(() => this.#learning).catch(() => undefined); // whoever needs it waits for it
    await Promise.all([this.commits.open(), known]);
  }

  /** Of Redis, in a cluster; 0 until it is known, and where Redis does not say. */
  get version(): number {
    return this.#version;
  }

  async #learnVersion(redis: Redis): Promise<void> {
    while (redis.status === 'ready') {
      try {
        const info = await within(this.#commandTimeout, redis.info('server'));
        this.#version = Number(/redis_version:(\d+)/.exec(info)?.[1] ?? 0);
        return;
      } catch (error) {
        if (!(error instanceof DeadlineError)) return; // it does not say
      }
    }
  }

  /** One step of a search through all keys; see SCAN. */
  async scan(cursor: string, pattern: string, count: number): Promise<[next: string, keys: string[]]> {
    return this.runner.scan(cursor, pattern, count);
  }

  async close(): Promise<void> {
    this.wakeUps.close();
    this.watches.close();
    this.runner.close();
    this.acquires.close();
    await this.commits.close();
  }
}

/** The more servers there are, the more tries it takes to find one in a slot of this server. */
function unusedKeys({ keyPrefix, has = () => true }: ServerParts): ResourceKeys {
  const name = `check:${randomUUID()}`;
  for (let tries = 0; ; tries += 1) {
    const keys = new ResourceKeys(keyPrefix, `${name}:${tries}`);
    if (tries === MAX_TRIES || has(keys)) return keys;
  }
}
