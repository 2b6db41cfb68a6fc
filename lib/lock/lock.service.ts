import { Logger } from '@nestjs/common';
import type {
  BeforeApplicationShutdown,
  OnApplicationShutdown,
  OnModuleDestroy,
  OnModuleInit,
} from '@nestjs/common';
import { LockConfigurationError, LockNotAcquiredError } from '../errors/lock.errors.js';
import { checkAcquireOptions, checkSlotOption, checkWithLockOptions } from '../redis-lock.options.js';
import type {
  AcquireOptions,
  ResolvedModuleOptions,
  Resource,
  WithLockOptions,
} from '../redis-lock.options.js';
import { Connections } from '../redis/connections.js';
import { within } from '../redis/deadline.js';
import { nameInKeys, normaliseResources, ResourceKeys } from '../redis/lock-keys.js';
import { findLocks } from '../redis/lock-search.js';
import { LockStore } from '../redis/lock-store.js';
import type { LockState } from '../redis/lock-replies.js';
import { GuardedCommit } from '../transaction/guarded-commit.js';
import type { LockScope, Setting } from '../transaction/lock-scope.js';
import type { LockContext } from '../transaction/lock-context.js';
import type { Held, LockScopes } from '../transaction/lock-scopes.js';
import type { LockTransaction } from '../transaction/lock-transaction.js';
import { LockedWork } from '../transaction/locked-work.js';
import type { Retries, Work } from '../transaction/locked-work.js';
import { AcquiredTurn, takeTurns } from '../transaction/take-turns.js';
import type { TurnPatience } from '../transaction/take-turns.js';
import { Watch } from '../transaction/watch.js';
import { Tokens } from '../redis/tokens.js';
import { AbortListeners } from './abort-listeners.js';
import { Acquirer } from './acquirer.js';
import { Granter } from './granter.js';
import { HandOverWatch } from './hand-over-watch.js';
import { InFlight } from './in-flight.js';
import { LeaseKeeper } from './lease-keeper.js';
import { Lock } from './lock.js';
import { RecentTimes } from './recent-times.js';
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
  readonly #aborts = new AbortListeners();
  #opened: Promise<void> | undefined;
  #ended: Promise<void> | undefined;
  #closed: Promise<void> | undefined;
  #lastKeys: { resource: string; slot: string | undefined; keys: readonly ResourceKeys[] } | undefined;

  private constructor(options: ResolvedModuleOptions, scopes: LockScopes) {
    const { commandTimeout } = options;
    const tokens = new Tokens();
    const times = new RecentTimes();
    this.#options = options;
    this.#scopes = scopes;
    this.#connections = new Connections(options, tokens.clientId, {
      onOutage: (error) => this.#logger.warn(`Redis connection: ${error.message}`),
      onRecovery: () => this.#logger.log('Redis connection: it is there again'),
      onWakeUp: (message) => this.#room.told(message),
      onSubscribed: () => this.#room.askAll(),
    });
    const { client, servers } = this.#connections;
    this.#store = new LockStore(servers, commandTimeout, options.replicas);
    this.#keeper = new LeaseKeeper(this.#store, times);
    this.#room = new WaitingRoom({
      store: this.#store,
      servers,
      commandTimeout,
      tokens,
      aborts: this.#aborts,
      times,
      isInUse: (token, owner) => acquirer.isPending(token, owner) || this.#keeper.has(token, owner),
    });
    this.#handOvers = new HandOverWatch(this.#store);
    const acquirer = new Acquirer(this.#store, this.#room, this.#keeper, times, (ttl, waits) =>
      tokens.next(ttl, waits, servers.sharded),
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
   * Takes the lock if it is free at this moment and nobody waits for it. Never waits itself. Inside of a scope that
   * holds the resource, it joins as {@link acquire} does if nobody else has a turn there at this moment.
   *
   * @returns null when somebody else holds it, or other code inside of the same scope has its turn
   * @throws LockUnavailableError, LockConfigurationError; LockNotAcquiredError (aborted, shutdown)
   */
  async tryAcquire(resource: Resource, options?: AcquireOptions): Promise<Lock | null> {
    checkAcquireOptions(options, 'tryAcquire');
    try {
      return await this.#acquire(resource, { ...options, wait: 0 }, true);
    } catch (error) {
      if (error instanceof LockNotAcquiredError && error.reason === 'busy') return null;
      throw error;
    }
  }

  /**
   * Takes the lock, waiting in line for up to `wait` ms: first come, first served, across all processes. Several
   * resources are taken all or none.
   *
   * Inside of a scope that holds the resource, it joins that scope and takes turns with the calls beside it: it waits
   * for its turn, and has it until `release()`, which ends the join only, or until the work of the scope ends, which
   * does not wait for it. Its `signal` is then aborted. Nothing tells the code that has acquired a lock from the code
   * beside it. So it must not ask for the same resource again before its release, by `withLock` or `acquire`: it
   * would wait for itself. Such a call is rejected after `wait` ms, or after `ttl` ms where `wait` is 0; with Infinity
   * it waits until aborted, or until the work of the scope ends. Use `withLock` where calls are nested.
   *
   * @throws LockNotAcquiredError when it is not to be had, with the reason
   * @throws LockLostError when the scope that it was to join has lost the lock, or its work has ended
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
   * is committed at that scope's end. It waits for its turn as long as the work beside it lasts, or up to `wait` ms;
   * for locks that were acquired beside it, as {@link acquire} does.
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
   * @param resource its name; or what {@link list} shows of a long one, for which a name that looks the same is taken
   * @param options slot: with which it was taken
   * @returns null when nobody holds it. Where other programs have written into its keys, what can be known.
   * @throws LockUnavailableError, LockConfigurationError
   */
  async inspect(resource: string, options: { slot?: string | undefined } = {}): Promise<LockState | null> {
    return this.#store.inspect(this.#keysNamed(resource, options, 'inspect'));
  }

  /**
   * All locks that are held, one after the other, in no order. One that is taken or given up meanwhile may be missing.
   * Redis looks at all its keys for this.
   *
   * @param options match: a pattern for the resource as in Redis' KEYS, `order:*` for example; of names over 512 bytes it
   * sees the first 480. Default: all.
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
   * work, and hears of it only when it renews or commits. What other programs have written into its keys is removed.
   *
   * @param resource its name, or what {@link list} shows of a long one
   * @param options slot: with which it was taken
   * @returns whether somebody had it
   * @throws LockUnavailableError, LockConfigurationError
   */
  async forceRelease(resource: string, options: { slot?: string | undefined } = {}): Promise<boolean> {
    return this.#store.forceRelease(this.#keysNamed(resource, options, 'forceRelease'));
  }

  /** Called by Nest, once for each module that provides it. Opens the connections and tries them out. */
  onModuleInit(): Promise<void> {
    this.#opened ??= this.#open();
    return this.#opened;
  }

  /** Booting never needs Redis: that may also fail. */
  async #open(): Promise<void> {
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
  beforeApplicationShutdown(): Promise<void> {
    this.#ended ??= this.#letWorkEnd();
    return this.#ended;
  }

  async #letWorkEnd(): Promise<void> {
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

  /**
   * @internal Calls back when the signal is aborted.
   * @returns ends that
   */
  listenTo(signal: AbortSignal, listener: () => void): () => void {
    this.#aborts.add(signal, listener);
    return () => this.#aborts.delete(signal, listener);
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
    await within(this.#options.commandTimeout, this.#handOvers.close()).catch(() => undefined); // their waiters ask in the end
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

  #keysNamed(resource: string, options: { slot?: string | undefined }, of: string): ResourceKeys {
    checkSlotOption(options, of);
    normaliseResources([resource]); // says what it has to be
    return new ResourceKeys(this.#options.keyPrefix, resource, options.slot, nameInKeys(resource));
  }

  /**
   * @param onlyNow does not wait for its turn either
   * @throws at once for a wrong resource
   */
  #acquire(resource: Resource, options?: AcquireOptions, onlyNow = false): Promise<Lock> {
    const held = this.#scopes.held(this, this.#keysOf(resource, options?.slot));
    if (held.path.length > 0) return this.#acquireInside(held, options ?? {}, onlyNow);
    return this.#granter.grant(held.missing, options).then(({ lock }) => lock);
  }

  async #acquireInside(
    { grants, missing, path }: Held,
    options: AcquireOptions,
    onlyNow: boolean,
  ): Promise<Lock> {
    const resources = grants.flatMap(({ lease }) => lease.resources);
    const { signal } = options;
    if (signal?.aborted) throw new LockNotAcquiredError('aborted', { resources, cause: signal.reason });
    if (onlyNow && !path.every(({ visits }) => visits.isFree)) {
      throw new LockNotAcquiredError('busy', { resources });
    }
    const turn = new AcquiredTurn(path, grants);
    try {
      if (onlyNow) turn.takeNow();
      else await turn.take(this.#turnPatience(options));
      const [grant] = grants;
      if (grant && missing.length === 0) return Lock.of(grant.lease, this.#keeper, turn, true);
      const { lease } = await this.#granter.grant(missing, options);
      return Lock.of(lease, this.#keeper, turn);
    } catch (error) {
      turn.leave();
      throw error;
    }
  }

  #turnPatience({ wait, signal, ttl = this.#options.ttl }: AcquireOptions): TurnPatience {
    return { wait, signal, aborts: this.#aborts, forAcquired: (wait ?? this.#options.wait) || ttl };
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
    const visits = path.map((scope) => scope.visits.begin());
    try {
      await takeTurns(visits, grants, this.#turnPatience(options));
      const visited = path; // those of scopes around this one count as long as these are open
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
