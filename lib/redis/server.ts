import { randomUUID } from 'node:crypto';
import type { Redis, RedisOptions } from 'ioredis';
import { CommitConnection } from './commit-connection.js';
import { DeadlineError, within } from './deadline.js';
import { ResourceKeys } from './lock-keys.js';
import { isReplaced } from './redis-client.js';
import { ScriptRunner } from './script-runner.js';
import { WakeUps } from './wake-ups.js';
import type { WakeUpMessage } from './wake-up-message.js';
import { WatchPool } from './watch-pool.js';

/** Reconnects soon and for ever. Nothing is queued or sent again: ScriptRunner does, and knows what was not sent. */
const SCRIPTS_CONNECTION = {
  lazyConnect: true,
  disconnectTimeout: 0,
  retryStrategy: (attempt: number) => Math.min(50 * attempt, 1_000),
  reconnectOnError: null,
  enableOfflineQueue: false,
  enableAutoPipelining: false,
  autoResendUnfulfilledCommands: false,
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

/** Parts of commandTimeout between two renewals of the connections, at least: after the first one, and at most. */
const [FIRST_PAUSE, LONGEST_PAUSE] = [1 / 4, 1];
/** Parts of commandTimeout without a renewal after which the next one is a first one. */
const CALM = 2;

export interface ServerListener {
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
  /** The connections are being made anew, since the server may have been replaced. */
  onRenewal(): void;
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
  readonly #onRenewal: () => void;
  #renewedAt = -Infinity;
  /** How many renewals followed each other. */
  #renewals = 0;
  #renewal: NodeJS.Timeout | undefined;
  #closed = false;
  #learning: Promise<void> | undefined;
  #version = 0;

  constructor(parts: ServerParts) {
    const { duplicate, keyPrefix, commandTimeout, replicas, listener } = parts;
    const { slotOf = () => undefined } = parts;
    this.#commandTimeout = commandTimeout;
    this.#onRenewal = () => listener.onRenewal();
    const isCluster = parts.slotOf !== undefined; // where a server that was replaced says so, and has another address
    const commit = {
      duplicate: (options: RedisOptions) =>
        isCluster ? duplicate(options) : this.#listening(duplicate, options),
      keyPrefix,
      unusedKeys: () => unusedKeys(parts),
      timeout: commandTimeout,
      isCluster,
    };
    this.commits = new CommitConnection(commit);
    this.watches = new WatchPool(commit, replicas > 0 ? POOL_SIZE - 1 : POOL_SIZE);
    this.wakeUps = new WakeUps(duplicate, commandTimeout, {
      onWakeUp: (message) => listener.onWakeUp(message),
      onSubscribed: () => listener.onSubscribed(),
      onMoved: () => listener.onMoved(),
    });
    const connect = () => {
      const redis = duplicate(SCRIPTS_CONNECTION);
      redis.on('ready', () => {
        if (parts.slotOf) this.#learning = this.#learnVersion(redis);
        listener.onReady();
      });
      redis.on('close', () => listener.onLost());
      return new ScriptRunner(redis, commandTimeout, slotOf, isCluster ? undefined : () => this.renew());
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

  /**
   * Makes all connections anew: at once, or after a pause when that was done a moment ago, for where there is no server
   * to write to they would never come to rest.
   */
  renew(): void {
    if (this.#renewal || this.#closed) return;
    const since = performance.now() - this.#renewedAt;
    if (since > CALM * this.#commandTimeout) this.#renewals = 0;
    const part = this.#renewals === 0 ? 0 : Math.min(FIRST_PAUSE * 2 ** (this.#renewals - 1), LONGEST_PAUSE);
    const pause = Math.max(0, part * this.#commandTimeout - since);
    this.#renewal = setTimeout(() => this.#renew(), pause).unref();
  }

  #renew(): void {
    this.#renewal = undefined;
    this.#renewedAt = performance.now();
    this.#renewals += 1;
    this.runner.renew();
    if (this.acquires !== this.runner) this.acquires.renew();
    this.commits.renew();
    this.watches.renew();
    this.wakeUps.renew();
    this.#onRenewal();
  }

  /** A connection that is not made anew by itself, and on which is heard when the server may have been replaced. */
  #listening(duplicate: ServerParts['duplicate'], options: RedisOptions): Redis {
    const madeAt = performance.now();
    const reconnectOnError = (error: Error) => {
      if (isReplaced(error) && madeAt >= this.#renewedAt) this.renew();
      return false;
    };
    return duplicate({ ...options, reconnectOnError });
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
    this.#closed = true;
    clearTimeout(this.#renewal);
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
