import type { Redis } from 'ioredis';
import { LockUnavailableError } from '../errors/lock.errors.js';
import { openCommitConnection } from './commit-connection.js';
import type { CommitConnectionParts } from './commit-connection.js';
import { within } from './deadline.js';

/** Kept for users that have one already, in an outer scope: what they wait for must not wait for them. */
const RESERVED = 1;

interface Waiting {
  readonly nested: boolean;
  readonly proceed: (error?: Error) => void;
}

/**
 * Connections of one user at a time, for WATCH is a state of the connection. They are kept open for the next user as
 * long as nothing is known to be watched on them.
 *
 * Users do not wait for each other in a circle: one that has none never takes the last connection, which is for users
 * that have one; and one that has two is not made to wait at all. What they wait for besides, locks for example, can
 * close a circle, which the patience of the first one ends.
 */
export class WatchPool {
  readonly #parts: CommitConnectionParts;
  readonly #size: number;
  #idle: Redis[] = [];
  readonly #taken = new Set<Redis>();
  /** Used for the last time. */
  readonly #retired = new WeakSet<Redis>();
  /** Taken, or about to be opened. */
  #inUse = 0;
  readonly #waiting: Waiting[] = [];
  #closed = false;

  /** @param size connections at most */
  constructor(parts: CommitConnectionParts, size: number) {
    this.#parts = parts;
    this.#size = size;
  }

  /**
   * @param held how many the scopes have in which the user runs
   * @param patience ms to wait for one
   * @throws LockUnavailableError when none is to be had
   */
  async take(held: number, patience: number): Promise<Redis> {
    await this.#slot(held, patience);
    try {
      const redis = this.#idle.pop() ?? (await this.#open());
      this.#taken.add(redis);
      return redis;
    } catch (error) {
      this.#free();
      throw error;
    }
  }

  /**
   * For a commit that is to share no connection, and waits for nothing else while it has one: it may have the last one too.
   *
   * @param patience ms to wait for one
   * @throws LockUnavailableError when none is to be had
   */
  takeAlone(patience: number): Promise<Redis> {
    return this.take(1, patience);
  }

  /** Gives a connection back on which nothing is watched any more. */
  giveBack(redis: Redis): void {
    if (!this.#taken.delete(redis)) return;
    if (redis.status === 'ready' && !this.#closed && !this.#retired.has(redis)) this.#idle.push(redis);
    else redis.disconnect();
    this.#free();
  }

  /** Gives none of the connections out again that there are: a new one may lead to another server. */
  renew(): void {
    for (const redis of this.#taken) this.#retired.add(redis);
    for (const redis of this.#idle) redis.disconnect();
    this.#idle = [];
  }

  /** Destroys a connection whose state is not known. Those that wait to be used may be no better. */
  drop(redis: Redis): void {
    redis.disconnect();
    for (const idle of this.#idle) idle.disconnect();
    this.#idle = [];
    if (this.#taken.delete(redis)) this.#free();
  }

  /** Also those in use: nothing can be committed any more. */
  close(): void {
    this.#closed = true;
    for (const redis of [...this.#idle, ...this.#taken]) redis.disconnect();
    this.#idle = [];
    for (const { proceed } of this.#waiting.splice(0)) proceed(closed());
  }

  async #slot(held: number, patience: number): Promise<void> {
    if (this.#closed) throw closed();
    if (this.#has(held > 0)) {
      this.#inUse += 1;
      return;
    }
    if (held > 1) {
      throw new LockUnavailableError(
        `All ${this.#size} connections for watch() are in use, and scopes around this one have ${held} of them: waiting might never end`,
      );
    }
    let proceed: Waiting['proceed'] = () => undefined;
    const turn = new Promise<void>((resolve, reject) => {
      proceed = (error) => (error ? reject(error) : resolve());
    });
    const entry = { nested: held > 0, proceed };
    this.#waiting.push(entry);
    try {
      await within(patience, turn);
    } catch {
      const place = this.#waiting.indexOf(entry);
      if (place < 0) return turn; // also when its turn came in the moment of the deadline
      this.#waiting.splice(place, 1);
      throw new LockUnavailableError(
        `All ${this.#size} connections for watch() and for commits over 1 MB were in use for ${Math.round(patience)} ms`,
      );
    }
  }

  #has(nested: boolean): boolean {
    return this.#inUse < (nested ? this.#size : this.#size - RESERVED);
  }

  /** Passes a place on: to one that others may be waiting for, or else to the first in line. */
  #free(): void {
    this.#inUse -= 1;
    const nested = this.#waiting.findIndex((waiting) => waiting.nested);
    const next = nested >= 0 ? nested : 0;
    const waiting = this.#waiting[next];
    if (waiting === undefined || !this.#has(waiting.nested)) return;
    this.#waiting.splice(next, 1);
    this.#inUse += 1;
    waiting.proceed();
  }

  async #open(): Promise<Redis> {
    const redis = await openCommitConnection(this.#parts);
    if (this.#closed) {
      redis.disconnect();
      throw closed();
    }
    redis.once('close', () => (this.#idle = this.#idle.filter((idle) => idle !== redis)));
    return redis;
  }
}

function closed(): LockUnavailableError {
  return new LockUnavailableError('The connections to Redis are closed');
}
