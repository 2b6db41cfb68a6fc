import type { Redis } from 'ioredis';
import { LockConflictError, LockUnavailableError } from '../errors/lock.errors.js';
import type { Lease } from '../lock/lease.js';
import { within } from '../redis/deadline.js';
import { isElsewhere, isReply } from '../redis/redis-client.js';
import type { Servers } from '../redis/servers.js';
import type { WatchPool } from '../redis/watch-pool.js';

/** ms to wait for a connection at most, however long the lease. */
const LONGEST_WAIT = 30_000;

/** ms to wait at most for a connection of the pool for work under that lease. */
export function patienceFor(lease: Lease): number {
  return Math.min(lease.isProvisional ? lease.ttl : lease.remaining, LONGEST_WAIT);
}

/**
 * Redis could not take something at the moment, and does not know any more what was watched. Nothing was applied, and the
 * work may run again, as after a conflict.
 */
export class WatchEndedError extends LockUnavailableError {
  override name = LockUnavailableError.name;
}

/**
 * The keys that work watches, from its first watch() to its next commit, and the connection that Redis knows them
 * by. Whoever commits has to call {@link connection} and then {@link end}; whoever does not, only {@link end}.
 */
export class Watch {
  readonly #servers: Servers;
  readonly #pool: Promise<WatchPool>;
  readonly #lease: Lease;
  readonly #commandTimeout: number;
  /** Every watch() so far, one after the other. */
  #watched: Promise<Redis>;
  #ended = false;

  /** @param held connections that the scopes have in which the work runs */
  constructor(servers: Servers, lease: Lease, held: number, commandTimeout: number) {
    this.#servers = servers;
    this.#pool = poolFor(servers, lease);
    this.#lease = lease;
    this.#commandTimeout = commandTimeout;
    const patience = patienceFor(lease);
    this.#watched = this.#pool.then((pool) => pool.take(held, patience));
    this.#watched.catch(() => undefined); // heard of in add() and connection()
  }

  /**
   * @throws LockUnavailableError when no connection was to be had, or Redis refused
   * @throws LockConflictError when the connection was lost: what it watched before may have changed
   */
  async add(keys: readonly string[]): Promise<void> {
    const watched = this.#watched.then((redis) => this.#add(redis, keys));
    this.#watched = watched;
    watched.catch(() => undefined); // heard of below, and in connection()
    await watched;
  }

  /**
   * The connection on which the commit has to be sent. Waits for a watch() that nobody waited for.
   *
   * @throws as {@link add}, also when the work caught that: a commit that should have depended on a key must not pass
   */
  async connection(): Promise<Redis> {
    const redis = await this.#watched;
    if (redis.status === 'ready') return redis;
    throw this.#conflict();
  }

  /**
   * Gives the connection back, after a watch() that is still under way. Never rejects.
   *
   * @param state 'clean' when EXEC has ended what was watched, 'watching' when nothing did, 'doubtful' when it is not
   * known
   */
  async end(state: 'clean' | 'watching' | 'doubtful'): Promise<void> {
    if (this.#ended) return;
    this.#ended = true;
    const redis = await this.#watched.catch(() => undefined);
    if (redis === undefined) return;
    const pool = await this.#pool;
    try {
      if (state === 'doubtful') throw new Error('It is not known what is watched on the connection');
      if (state === 'watching') await within(this.#commandTimeout, redis.unwatch());
      pool.giveBack(redis);
    } catch {
      pool.drop(redis); // nobody needs it any more
    }
  }

  async #add(redis: Redis, keys: readonly string[]): Promise<Redis> {
    try {
      await within(this.#commandTimeout, redis.watch(...keys));
      return redis;
    } catch (error) {
      (await this.#pool).drop(redis);
      const { resources } = this.#lease;
      if (error instanceof Error && isElsewhere(error)) {
        await this.#servers.lookAgain();
        // The work may run again where the keys are then.
        throw new WatchEndedError(`Redis refused to watch: ${error.message}`, { resources, cause: error });
      }
      if (error instanceof Error && isReply(error)) {
        const message = `Redis refused to watch: ${error.message}`;
        throw new LockUnavailableError(message, { resources, cause: error });
      }
      throw this.#conflict(error);
    }
  }

  #conflict(cause?: unknown): LockConflictError {
    return new LockConflictError('The connection that watched keys was lost: they may have changed', {
      resources: this.#lease.resources,
      cause,
    });
  }
}

async function poolFor(servers: Servers, { keys }: Lease): Promise<WatchPool> {
  const [first] = keys;
  if (first === undefined) throw new LockUnavailableError('A lock without a resource watches nothing');
  return (await servers.of(first)).watches;
}
