import { randomBytes } from 'node:crypto';
import { Logger } from '@nestjs/common';
import type {
  BeforeApplicationShutdown,
  OnApplicationShutdown,
  OnModuleDestroy,
  OnModuleInit,
} from '@nestjs/common';
import { LockConfigurationError, LockNotAcquiredError, LockUnavailableError } from '../errors/lock.errors.js';
import { checkAcquireOptions, checkWithLockOptions } from '../redis-lock.options.js';
import type {
  AcquireOptions,
  ResolvedModuleOptions,
  Resource,
  WithLockOptions,
} from '../redis-lock.options.js';
import { Connections } from '../redis/connections.js';
import { within } from '../redis/deadline.js';
import { normaliseResources, resourceKeys } from '../redis/lock-keys.js';
import { LockStore } from '../redis/lock-store.js';
import { GuardedCommit } from '../transaction/guarded-commit.js';
import type { LockScopes } from '../transaction/lock-scope.js';
import { LockedWork } from '../transaction/locked-work.js';
import type { Grant, Work } from '../transaction/locked-work.js';
import { Lease, now } from './lease.js';
import { LeaseKeeper } from './lease-keeper.js';
import { Lock } from './lock.js';

const DEFAULT_RETRIES = 3;

/**
 * Locks on named resources, shared by all processes that use the same Redis and `keyPrefix`. Every refusal is a
 * rejection, never a synchronous throw.
 */
export class LockService
  implements OnModuleInit, OnModuleDestroy, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly #options: ResolvedModuleOptions;
  readonly #connections: Connections;
  readonly #store: LockStore;
  readonly #keeper: LeaseKeeper;
  readonly #work: LockedWork;
  readonly #logger = new Logger(LockService.name);
  /** Part of every token: tells Redis whose it is. */
  readonly #clientId = randomBytes(12).toString('base64url');
  readonly #running = new Set<Promise<unknown>>();
  #sequence = 0;
  #refusing = false;
  #closed: Promise<void> | undefined;

  /** @internal RedisLockModule makes it. */
  constructor(options: ResolvedModuleOptions, scopes: LockScopes) {
    const { commandTimeout } = options;
    this.#options = options;
    this.#connections = new Connections(options, (error) =>
      this.#logger.warn(`Redis connection: ${error.message}`),
    );
    const { client } = this.#connections;
    this.#store = new LockStore(client, commandTimeout);
    this.#keeper = new LeaseKeeper(this.#store);
    const commits = new GuardedCommit(this.#store, this.#connections, this.#keeper, commandTimeout);
    const commands = new Set(client.getBuiltinCommands().flatMap((name) => [name, `${name}Buffer`]));
    this.#work = new LockedWork(this.#keeper, commits, scopes, client, commands, this.#logger);
  }

  /**
   * Takes the lock if it is free at this moment. Never waits.
   *
   * @returns null when somebody else holds it
   * @throws LockUnavailableError, LockConfigurationError; LockNotAcquiredError (aborted, shutdown)
   */
  async tryAcquire(resource: Resource, options?: AcquireOptions): Promise<Lock | null> {
    checkAcquireOptions(options, 'tryAcquire');
    try {
      return (await this.#grant(resource, { ...options, wait: 0 })).lock;
    } catch (error) {
      if (error instanceof LockNotAcquiredError && error.reason === 'busy') return null;
      throw error;
    }
  }

  /**
   * Takes the lock. Several resources are taken all or none.
   *
   * @throws LockNotAcquiredError when it is not to be had, with the reason
   * @throws LockUnavailableError when Redis cannot be asked within commandTimeout; nothing is left behind
   * @throws LockConfigurationError for a wrong resource or option
   */
  async acquire(resource: Resource, options?: AcquireOptions): Promise<Lock> {
    checkAcquireOptions(options);
    return (await this.#grant(resource, options)).lock;
  }

  /**
   * Runs the work under the lock. What it queues on `multi` is committed when it has ended, only if the lock is
   * still held in that instant, and the same EXEC gives the lock up. Work that fails leaves nothing applied.
   *
   * A commit that was refused because the lock was lost runs the work again, under a new lock, up to `retries`
   * times.
   *
   * @returns what the work returned
   * @throws the work's own error; otherwise as {@link acquire}, and LockLostError, LockTransactionError,
   * LockOutcomeUnknownError
   */
  async withLock<T>(resource: Resource, work: Work<T>): Promise<T>;
  async withLock<T>(resource: Resource, options: WithLockOptions, work: Work<T>): Promise<T>;
  async withLock<T>(resource: Resource, ...rest: [Work<T>] | [WithLockOptions, Work<T>]): Promise<T> {
    const [options, work] = rest.length === 1 ? [{}, rest[0]] : rest;
    checkWithLockOptions(options);
    if (typeof work !== 'function') {
      throw new LockConfigurationError(`withLock needs a function to run under the lock; got ${typeof work}`);
    }
    const run = this.#runUntilCommitted(resource, options, work);
    this.#running.add(run);
    try {
      return await run;
    } finally {
      this.#running.delete(run);
    }
  }

  /** @internal Opens the connection for commits and tries it out. Booting never needs Redis: it may also fail. */
  async onModuleInit(): Promise<void> {
    await this.#connections.commitConnection().catch((error: unknown) => {
      this.#logger.warn(`Guarded commits are not available at the moment. ${String(error)}`);
    });
  }

  /** @internal Refuses new locks from the first shutdown hook on. */
  onModuleDestroy(): void {
    this.#refusing = true;
  }

  /** @internal Lets the work under locks end, while the HTTP server still answers. */
  async beforeApplicationShutdown(): Promise<void> {
    this.#refusing = true;
    const ended = Promise.allSettled(this.#running);
    await within(this.#options.shutdownTimeout, ended).catch(() => {
      this.#logger.warn(`Work under locks still ran after ${this.#options.shutdownTimeout} ms`);
    });
  }

  /** @internal Releases what is left and closes what this service opened. */
  onApplicationShutdown(): Promise<void> {
    this.#refusing = true;
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #runUntilCommitted<T>(resource: Resource, options: WithLockOptions, work: Work<T>): Promise<T> {
    let grant = await this.#grant(resource, options);
    for (let retries = options.retries ?? DEFAULT_RETRIES; ; retries -= 1) {
      const outcome = await this.#work.run(grant, work, options);
      if ('result' in outcome) return outcome.result;
      if (retries <= 0) throw outcome.refused;
      try {
        grant = await this.#grant(resource, options);
      } catch {
        throw outcome.refused; // the caller had the lock, and lost it: that is the news
      }
    }
  }

  async #grant(resource: Resource, options: AcquireOptions = {}): Promise<Grant> {
    const resources = normaliseResources(resource);
    this.#assertWanted(resources, options.signal);
    const { keyPrefix } = this.#options;
    const ttl = options.ttl ?? this.#options.ttl;
    const keys = resources.map((name) => resourceKeys(keyPrefix, name, options.slot));
    const token = `${this.#clientId}:${++this.#sequence}:${ttl}`;
    const sent = now();
    const reply = await this.#store.acquire({ token, keys }, ttl);
    if (!reply.granted) {
      const { retryAfter } = reply;
      throw new LockNotAcquiredError('busy', {
        resources,
        ...(retryAfter === undefined ? {} : { retryAfter }),
      });
    }
    const autoExtend = options.autoExtend ?? this.#options.autoExtend;
    const renewUntil = autoExtend ? sent.monotonic + (options.maxHold ?? this.#options.maxHold) : -Infinity;
    const lease = new Lease(token, keys, reply.fencingTokens, ttl, renewUntil, sent);
    try {
      this.#assertWanted(resources, options.signal);
      if (lease.remaining <= 0) {
        throw new LockUnavailableError(`The lease of ${ttl} ms was over before Redis' answer was there`, {
          resources,
        });
      }
    } catch (error) {
      this.#store.giveBack(lease, ttl);
      throw error;
    }
    const lock = new Lock(lease, this.#keeper);
    this.#keeper.keep(lease);
    return { lease, lock };
  }

  /** @throws LockNotAcquiredError when the application closes, or the caller has aborted */
  #assertWanted(resources: readonly string[], signal: AbortSignal | undefined): void {
    if (this.#refusing) throw new LockNotAcquiredError('shutdown', { resources });
    if (signal?.aborted) throw new LockNotAcquiredError('aborted', { resources, cause: signal.reason });
  }

  async #close(): Promise<void> {
    const leases = [...this.#keeper.leases];
    const released = await Promise.allSettled(leases.map((lease) => this.#keeper.release(lease)));
    const failed = released.filter(({ status }) => status === 'rejected').length;
    if (failed > 0) this.#logger.warn(`${failed} locks could not be released and end with their leases`);
    this.#keeper.close();
    await this.#store.close();
    await this.#connections.close();
  }
}
