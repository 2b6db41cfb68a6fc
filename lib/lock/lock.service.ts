import { randomBytes } from 'node:crypto';
import { Logger } from '@nestjs/common';
import type {
  BeforeApplicationShutdown,
  OnApplicationShutdown,
  OnModuleDestroy,
  OnModuleInit,
} from '@nestjs/common';
import { LockConfigurationError, LockNotAcquiredError } from '../errors/lock.errors.js';
import { checkAcquireOptions, checkWithLockOptions } from '../redis-lock.options.js';
import type {
  AcquireOptions,
  ResolvedModuleOptions,
  Resource,
  WithLockOptions,
} from '../redis-lock.options.js';
import { Connections } from '../redis/connections.js';
import { within } from '../redis/deadline.js';
import { normaliseResources, ResourceKeys } from '../redis/lock-keys.js';
import { findLocks } from '../redis/lock-search.js';
import { LockStore } from '../redis/lock-store.js';
import type { LockState } from '../redis/lock-replies.js';
import { GuardedCommit } from '../transaction/guarded-commit.js';
import type { LockScope, Setting } from '../transaction/lock-scope.js';
import type { LockContext } from '../transaction/lock-context.js';
import type { LockScopes } from '../transaction/lock-scopes.js';
import type { LockTransaction } from '../transaction/lock-transaction.js';
import { LockedWork } from '../transaction/locked-work.js';
import type { Retries, Work } from '../transaction/locked-work.js';
import { takeTurns } from '../transaction/take-turns.js';
import { Watch } from '../transaction/watch.js';
import { Acquirer } from './acquirer.js';
import { Granter } from './granter.js';
import { HandOverWatch } from './hand-over-watch.js';
import { InFlight } from './in-flight.js';
import { LeaseKeeper } from './lease-keeper.js';
import { Lock } from './lock.js';
import { Succession } from './succession.js';
import { WaitingRoom } from './waiting-room.js';

const DEFAULT_RETRIES = 3;

/** `({ multi }) => multi.set(..)` returns the queue, which is no result. What could be anything stays what it is. */
type NoResult<Queue> = 0 extends 1 & Queue ? Queue : [Queue] extends [never] ? Queue : undefined;

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
  readonly #room: WaitingRoom;
  readonly #handOvers: HandOverWatch;
  readonly #granter: Granter;
  readonly #scopes: LockScopes;
  readonly #work: LockedWork;
  readonly #logger = new Logger(LockService.name);
  readonly #running = new InFlight();
  #closed: Promise<void> | undefined;
  #lastKeys: { resource: string; slot: string | undefined; keys: readonly ResourceKeys[] } | undefined;

  private constructor(options: ResolvedModuleOptions, scopes: LockScopes) {
    const { commandTimeout } = options;
    // Part of every token: tells Redis whose it is.
    const clientId = randomBytes(12).toString('base64url');
    let sequence = 0;
    this.#options = options;
    this.#scopes = scopes;
    this.#connections = new Connections(options, clientId, {
      onOutage: (error) => this.#logger.warn(`Redis connection: ${error.message}`),
      onRecovery: () => this.#logger.log('Redis connection: it is there again'),
      onWakeUp: (...told) => this.#room.told(...told),
      onSubscribed: () => this.#room.askAll(),
    });
    const { client, servers } = this.#connections;
    this.#store = new LockStore(servers, commandTimeout, options.replicas);
    this.#keeper = new LeaseKeeper(this.#store);
    this.#room = new WaitingRoom(
      this.#store,
      servers,
      commandTimeout,
      (token) => acquirer.isPending(token) || this.#keeper.has(token),
    );
    this.#handOvers = new HandOverWatch(this.#store);
    const acquirer = new Acquirer(
      this.#store,
      this.#room,
      this.#keeper,
      (ttl) => `${clientId}:${servers.sharded ? 's' : ''}${++sequence}:${ttl}`,
    );
    const succession = new Succession(this.#store, this.#room, this.#keeper);
    this.#granter = new Granter(options, {
      store: this.#store,
      keeper: this.#keeper,
      acquirer,
      succession,
      isNested: () => scopes.innermostOpen !== undefined,
    });
    this.#work = new LockedWork({
      service: this,
      keeper: this.#keeper,
      commits: new GuardedCommit(this.#store, servers, this.#keeper, commandTimeout),
      openWatch: (lease, held) => new Watch(servers, lease, held, commandTimeout),
      scopes,
      redis: client,
      knownCommands: new Set(client.getBuiltinCommands().flatMap((name) => [name, `${name}Buffer`])),
      slotOf: (name) => servers.slotOf(name),
      logger: this.#logger,
    });
  }

  /** @internal For RedisLockModule. */
  static create(options: ResolvedModuleOptions, scopes: LockScopes): LockService {
    return new LockService(options, scopes);
  }

  /**
   * Takes the lock if it is free at this moment and nobody waits for it. Never waits itself.
   *
   * @returns null when somebody else holds it
   * @throws LockUnavailableError, LockConfigurationError; LockNotAcquiredError (aborted, shutdown)
   */
  async tryAcquire(resource: Resource, options?: AcquireOptions): Promise<Lock | null> {
    checkAcquireOptions(options, 'tryAcquire');
    try {
      return await this.#acquire(resource, { ...options, wait: 0 });
    } catch (error) {
      if (error instanceof LockNotAcquiredError && error.reason === 'busy') return null;
      throw error;
    }
  }

  /**
   * Takes the lock, waiting in line for up to `wait` ms: first come, first served, across all processes. Several
   * resources are taken all or none. Inside of a scope that holds the resource, it joins: its release then ends the
   * join only.
   *
   * @throws LockNotAcquiredError when it is not to be had, with the reason
   * @throws LockUnavailableError when Redis cannot be asked within commandTimeout; nothing is left behind
   * @throws LockConfigurationError for a wrong resource or option
   */
  acquire(resource: Resource, options?: AcquireOptions): Promise<Lock> {
    try {
      checkAcquireOptions(options);
      return this.#acquire(resource, options);
    } catch (error) {
      return Promise.reject(error as LockConfigurationError);
    }
  }

  /**
   * Runs the work under the lock. What it queues on `multi` is committed when it has ended, only if the lock is
   * still held in that instant, and the same EXEC gives the lock up. Work that fails leaves nothing applied.
   *
   * A commit that was refused runs the work again, up to `retries` times: under the same lock when a watched key
   * changed, under a new one when the lock was lost. Inside of a scope that holds the resource, the work joins that scope, one at a time, and what it queued
   * is committed at that scope's end.
   *
   * @returns what the work returned
   * @throws the work's own error; otherwise as {@link acquire}, and LockLostError, LockConflictError,
   * LockTransactionError, LockOutcomeUnknownError
   */
  async withLock<Queue extends LockTransaction>(
    resource: Resource,
    work: (context: LockContext) => Queue,
  ): Promise<NoResult<Queue>>;
  async withLock<Queue extends LockTransaction>(
    resource: Resource,
    options: WithLockOptions,
    work: (context: LockContext) => Queue,
  ): Promise<NoResult<Queue>>;
  async withLock<T>(resource: Resource, work: Work<T>): Promise<T>;
  async withLock<T>(resource: Resource, options: WithLockOptions, work: Work<T>): Promise<T>;
  async withLock<T>(resource: Resource, ...rest: [Work<T>] | [WithLockOptions, Work<T>]): Promise<T> {
    const [options = {}, work] = rest.length === 1 ? [{}, rest[0]] : rest;
    checkWithLockOptions(options);
    if (typeof work !== 'function') {
      throw new LockConfigurationError(`withLock needs a function to run under the lock; got ${typeof work}`);
    }
    const keys = this.#keysOf(resource, options.slot);
    const retries = { left: options.retries ?? DEFAULT_RETRIES };
    const outer = this.#scopes.innermostOpen;
    this.#running.begin();
    try {
      if (outer) return await this.#runInside(outer, keys, options, work, retries);
      const setting = { keys, borrowed: [], outer, visited: [] };
      return await this.#runUntilCommitted(keys, setting, options, work, retries);
    } finally {
      this.#running.end();
    }
  }

  /**
   * What an operator wants to know about a lock.
   *
   * @param resource locked without a `slot`; those with one are found by {@link list}
   * @returns null when nobody holds it
   * @throws LockUnavailableError, LockConfigurationError
   */
  async inspect(resource: string): Promise<LockState | null> {
    return this.#store.inspect(this.#keyOf(resource));
  }

  /**
   * All locks that are held, one after the other, in no order. One that is taken or given up meanwhile may be missing.
   * Redis looks at all its keys for this.
   *
   * @param options match: a pattern for the resource as in Redis' KEYS, `order:*` for example. Default: all.
   * @throws LockUnavailableError, LockConfigurationError
   */
  async *list(options: { match?: string } = {}): AsyncGenerator<LockState, void, undefined> {
    const { match = '*' } = options;
    if (typeof match !== 'string' || match === '' || /[{}]/.test(match)) {
      throw new LockConfigurationError(
        "Option \"match\" of list must be a pattern without '{' and '}', not empty",
      );
    }
    const { servers, client } = this.#connections;
    for await (const keys of findLocks(
      servers,
      client.options.keyPrefix ?? '',
      this.#options.keyPrefix,
      match,
    )) {
      for (const state of await Promise.all(keys.map((key) => this.#store.inspect(key))))
        if (state) yield state;
    }
  }

  /**
   * Takes the lock away from whoever has it; the next in line gets it. For operators: the holder may still be at
   * work, and hears of it only when it renews or commits.
   *
   * @returns whether somebody had it
   * @throws LockUnavailableError, LockConfigurationError
   */
  async forceRelease(resource: string): Promise<boolean> {
    return this.#store.forceRelease(this.#keyOf(resource));
  }

  /** Called by Nest. Opens the connections and tries them out. Booting never needs Redis: that may also fail. */
  async onModuleInit(): Promise<void> {
    try {
      const servers = await this.#connections.servers.all();
      await Promise.all(servers.map((server) => server.open()));
    } catch (error) {
      this.#logger.warn(`Guarded commits are not available at the moment. ${String(error)}`);
    }
  }

  /** Called by Nest. Sends waiters away and refuses new locks, but for those that running work needs to end. */
  async onModuleDestroy(): Promise<void> {
    this.#granter.refuse('outside of scopes');
    await this.#room.close(false);
  }

  /** Called by Nest. Lets the work under locks end, while the HTTP server still answers. */
  async beforeApplicationShutdown(): Promise<void> {
    await this.onModuleDestroy();
    const { shutdownTimeout } = this.#options;
    await within(shutdownTimeout, this.#running.drained()).catch(() => {
      this.#logger.warn(`Work under locks still ran after ${shutdownTimeout} ms`);
    });
  }

  /** Called by Nest. Releases what is left and closes what this service opened. */
  onApplicationShutdown(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  /** @internal */
  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  async #close(): Promise<void> {
    this.#granter.refuse('everything');
    await this.#room.close(true);
    // What is granted from here on gives itself back; then nothing more can come, or it ends with its lease.
    await within(this.#options.commandTimeout, this.#granter.drained()).catch(() => undefined);
    await Promise.all([...this.#keeper.leases].map((lease) => this.#keeper.revoke(lease)));
    this.#keeper.close();
    this.#handOvers.close();
    await this.#store.close();
    await this.#connections.close();
  }

  /**
   * The last resource is remembered: callers often want the same one again, and thousands may wait for it.
   *
   * @throws LockConfigurationError for a name that is no resource
   */
  #keysOf(resource: Resource, slot: string | undefined): readonly ResourceKeys[] {
    const last = this.#lastKeys;
    if (last?.resource === resource && last.slot === slot) return last.keys;
    const { keyPrefix } = this.#options;
    const keys = normaliseResources(resource).map((name) => new ResourceKeys(keyPrefix, name, slot));
    if (typeof resource === 'string') this.#lastKeys = { resource, slot, keys };
    return keys;
  }

  #keyOf(resource: string): ResourceKeys {
    if (typeof resource !== 'string') normaliseResources([resource]); // says what it has to be
    const [keys] = this.#keysOf(resource, undefined);
    return keys as ResourceKeys;
  }

  /** @throws at once for a wrong resource */
  #acquire(resource: Resource, options?: AcquireOptions): Promise<Lock> {
    const { grants, missing } = this.#scopes.held(this, this.#keysOf(resource, options?.slot));
    const [grant] = grants;
    if (missing.length === 0 && grant) return Promise.resolve(Lock.of(grant.lease, this.#keeper, true));
    return this.#granter.grant(missing, options).then(({ lock }) => lock);
  }

  /** Takes its turn in the scopes that have what it wants, and joins them, or takes what is missing. */
  async #runInside<T>(
    outer: LockScope,
    keys: readonly ResourceKeys[],
    options: WithLockOptions,
    work: Work<T>,
    retries: Retries,
  ): Promise<T> {
    const { grants, missing, joinable, path } = this.#scopes.held(this, keys);
    // Said at once, so that none of these scopes ends before; then one after the other, in everybody's order.
    const visits = path.map((scope) => scope.visit());
    try {
      await takeTurns(visits, grants, options);
      const visited = [...outer.visited, ...path];
      if (joinable && missing.length === 0) {
        const setting = { keys, borrowed: [], outer, visited };
        return await this.#work.join(joinable, grants, setting, work, options, retries);
      }
      // What outer scopes rely on, this work relies on with them.
      const borrowed = [...new Set([...grants, ...path.flatMap((scope) => [...scope.borrowed])])];
      const setting = { keys, borrowed, outer, visited };
      return await this.#runUntilCommitted(missing, setting, options, work, retries);
    } finally {
      for (const visit of visits) visit.leave();
    }
  }

  async #runUntilCommitted<T>(
    missing: readonly ResourceKeys[],
    setting: Setting,
    options: WithLockOptions,
    work: Work<T>,
    retries: Retries,
  ): Promise<T> {
    let grant = await this.#granter.grant(missing, options);
    for (; ; retries.left -= 1) {
      const outcome = await this.#work.run(grant, setting, work, options, retries);
      if ('result' in outcome) return outcome.result;
      const isOuterLost = setting.borrowed.some(({ lease }) => lease.remaining <= 0);
      if (retries.left <= 0 || isOuterLost) throw outcome.refused;
      try {
        grant = await this.#granter.grant(missing, options);
      } catch {
        throw outcome.refused; // the caller had the lock, and lost it: that is the news
      }
    }
  }
}
