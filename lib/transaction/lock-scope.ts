import {
  LockConfigurationError,
  LockConflictError,
  LockLostError,
  LockScopeError,
  LockTransactionError,
  LockUnavailableError,
} from '../errors/lock.errors.js';
import type { Grant } from '../lock/grant.js';
import type { Lease } from '../lock/lease.js';
import type { Lock } from '../lock/lock.js';
import { resourcesOf } from '../redis/lock-keys.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import type { RedisClient } from '../redis/redis-client.js';
import { LockContext } from './lock-context.js';
import { CommandQueue, keyElsewhere } from './lock-transaction.js';
import type { LockTransaction, QueuedCommand, TransactionClient } from './lock-transaction.js';
import { WatchEndedError } from './watch.js';
import type { Watch } from './watch.js';

/** What all scopes of a lock service have in common. */
export interface ScopeHost extends TransactionClient {
  /** The lock service: scopes of different ones never join. */
  readonly service: object;
  readonly redis: RedisClient;
  /** Applies commands now, under the lock and what it relies on, and keeps them. Ends the watch. */
  commitNow(
    lease: Lease,
    reliedOn: readonly Lease[],
    commands: readonly QueuedCommand[],
    watch: Watch | undefined,
  ): Promise<unknown[]>;
  /** @param held connections of outer scopes that watch */
  openWatch(lease: Lease, held: number): Watch;
  /** Told of the error of a commit listener: what was committed stays committed. */
  onListenerError(error: unknown): void;
}

/** Where work runs: what it asked for, and in which scopes. */
export interface Setting {
  readonly keys: readonly ResourceKeys[];
  /** Locks of outer scopes that it relies on as well: its commits need them to be held. */
  readonly borrowed: readonly Grant[];
  /** The open scope whose code runs this one. */
  readonly outer: LockScope | undefined;
  /** Scopes in which it is on a visit: it has its turn there, and must not wait for it again. */
  readonly visited: readonly LockScope[];
}

const NONE: readonly never[] = [];

type CommitListener = (replies: unknown[]) => unknown;

/** Work that uses a scope that is not its own: it takes its turn, and the scope does not end before it has left. */
export interface Visit {
  readonly scope: LockScope;
  /** Gets in line; resolves when those before it have left. */
  takeTurn(): Promise<void>;
  leave(): void;
}

/**
 * One run of work under a lock: the context the work is given, from its start to its end. Work that asks for the same
 * lock again joins: it gets a scope of its own on the same lock, and what it queued goes to the outer one when it has
 * ended well, or nowhere.
 */
export class LockScope extends LockContext {
  readonly #host: ScopeHost;
  readonly #setting: Setting;
  readonly #grant: Grant;
  readonly #transaction: boolean;
  readonly #joined: LockScope | undefined;
  readonly #queue: CommandQueue;
  /** Made when needed, as most of what follows: most scopes have none. */
  #visits: Set<Promise<void>> | undefined;
  #lastTurn: Promise<void> | undefined;
  #borrowed: Set<Grant> | undefined;
  #listeners: CommitListener[] | undefined;
  #isOpen = true;
  /** Commits that were applied or may have been, and what else must not happen twice. */
  #commits = 0;
  #watch: Watch | undefined;
  /** Whose watch() that is. */
  #watchers: Set<LockScope> | undefined;
  /** What its commits so far, and its watch(), were refused with. */
  #refusals: Refusal[] | undefined;

  /**
   * @param grant the lock that the work is given: of the first resource it asked for
   * @param transaction whether the work has a `multi`
   */
  constructor(host: ScopeHost, grant: Grant, setting: Setting, transaction: boolean, joined?: LockScope) {
    super();
    this.#host = host;
    this.#setting = setting;
    this.#grant = grant;
    this.#transaction = transaction;
    this.#joined = joined;
    if (setting.borrowed.length > 0) this.#borrowed = new Set(setting.borrowed);
    this.#queue = new CommandQueue(host, setting.keys, () => this.#assertOpen());
    // Work takes its context apart: `({ multi, key }) => ..`
    this.key = this.key.bind(this);
    this.watch = this.watch.bind(this);
    this.commit = this.commit.bind(this);
    this.afterCommit = this.afterCommit.bind(this);
  }

  get lock(): Lock {
    this.#assertOpen();
    return this.#grant.lock;
  }

  get signal(): AbortSignal {
    return this.lock.signal;
  }

  get fencingToken(): number {
    return this.lock.fencingToken;
  }

  get redis(): RedisClient {
    this.#assertOpen();
    return this.#host.redis;
  }

  get multi(): LockTransaction {
    this.#assertTransaction('`multi`');
    return this.#queue.multi;
  }

  key(...parts: (string | number)[]): string {
    this.#assertOpen();
    return [`{${this.#setting.keys[0]?.tag}}`, ...parts].join(':');
  }

  async watch(...keys: string[]): Promise<void> {
    this.#assertTransaction('watch()');
    if (keys.length === 0 || keys.some((key: unknown) => typeof key !== 'string' || key === '')) {
      throw new LockConfigurationError('watch() needs keys, each a string that is not empty');
    }
    const elsewhere = keyElsewhere(this.#host, this.#setting.keys, () => keys);
    if (elsewhere) throw new LockConfigurationError(`watch(): ${elsewhere}`);
    const committer = this.#committer;
    committer.#watch ??= this.#host.openWatch(this.#root.#grant.lease, watchersAround(committer));
    (committer.#watchers ??= new Set()).add(this);
    try {
      await committer.#watch.add(keys);
    } catch (error) {
      throw committer.noteRefusal(error);
    }
  }

  async commit(): Promise<unknown[]> {
    this.#assertOpen();
    for (const watcher of this.#committer.#watchers ?? []) {
      if (watcher === this || !watcher.isOpen) continue;
      throw new LockScopeError('commit() would end what other work under the same lock still watches', {
        resources: resourcesOf(this.#setting.keys),
      });
    }
    const own = this.#queue.take(); // first: when it is doomed, the outer scopes keep theirs
    const before = this.#committer === this ? [] : (this.#joined?.takeAllCommands() ?? []);
    const commands = [...before.flatMap((taken) => taken.commands), ...own];
    if (commands.length === 0) return [];
    try {
      const replies = await this.#commitNow(commands);
      return replies.slice(commands.length - own.length);
    } catch (error) {
      // Whoever wanted this commit hears that it failed; what outer work queued is not part of that.
      if (wasNothingApplied(error)) for (const { queue, commands: taken } of before) queue.putBack(taken);
      throw error;
    }
  }

  afterCommit(listener: CommitListener): void {
    this.#assertOpen();
    (this.#listeners ??= []).push(listener);
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** The next open scope around this one. */
  get outer(): LockScope | undefined {
    let { outer } = this.#setting;
    while (outer && !outer.isOpen) outer = outer.#setting.outer;
    return outer;
  }

  get visited(): readonly LockScope[] {
    return this.#setting.visited;
  }

  get grant(): Grant {
    return this.#grant;
  }

  /** Locks of other scopes that its commits rely on. */
  get borrowed(): readonly Grant[] {
    return this.#borrowed ? [...this.#borrowed] : NONE;
  }

  /** The lock with that owner key, if code in this scope has it, in this service. */
  grantOf(service: object, ownerKey: string): Grant | undefined {
    if (service !== this.#host.service) return undefined;
    return this.#reliedOn().find(({ lease }) => lease.keys.some(({ owner }) => owner === ownerKey));
  }

  /** Whether anything was applied, or may have been: then the work must not run again. */
  get hasCommitted(): boolean {
    return this.#commits > 0;
  }

  /** For work that was seen to begin: what it gave out cannot be taken back. */
  forbidRerun(): void {
    this.#commits += 1;
    this.#joined?.forbidRerun();
  }

  /**
   * Counts a commit, in the scopes around this one as well: their work must not run again either, for it would do
   * once more what was committed here.
   *
   * @param by -1 when it turned out that nothing was applied
   */
  countCommit(by: 1 | -1): void {
    this.#commits += by;
    this.#setting.outer?.countCommit(by);
  }

  /** Whether the work failed with nothing else than the refusal of its commit, so that it may run again. */
  isRefusal(error: unknown): error is Refusal {
    return (this.#refusals?.includes(error as Refusal) ?? false) && !this.hasCommitted;
  }

  get isWatching(): boolean {
    return this.#watch !== undefined;
  }

  /** What the next commit depends on; whoever takes it has to end it. */
  takeWatch(): Watch | undefined {
    const watch = this.#watch;
    this.#watch = undefined;
    this.#watchers = undefined;
    return watch;
  }

  /** Whether somebody wants to hear the replies of a commit. */
  get isListenedTo(): boolean {
    return this.#allListeners().length > 0;
  }

  /** A scope for work inside of this one, on locks that it has. */
  join(grant: Grant, setting: Setting, transaction: boolean): LockScope {
    return new LockScope(this.#host, grant, setting, transaction, this);
  }

  /** From now on the scope does not end before the visitor has left. Its turn comes when it takes it. */
  visit(): Visit {
    let leave = () => undefined as void;
    const left = new Promise<void>((resolve) => (leave = resolve));
    const visits = (this.#visits ??= new Set());
    visits.add(left);
    void left.then(() => visits.delete(left));
    const takeTurn = () => {
      const turn = this.#lastTurn ?? Promise.resolve();
      this.#lastTurn = Promise.all([turn, left]).then(() => undefined);
      return turn;
    };
    return { scope: this, takeTurn, leave };
  }

  /** Closes the scope to the work: at once, or after the last visitor has left. */
  end(): Promise<void> | undefined {
    if (this.#visits && this.#visits.size > 0) return this.#endAfter(this.#visits);
    this.#isOpen = false;
    return undefined;
  }

  /** @throws LockTransactionError when something was refused */
  takeCommands(): QueuedCommand[] {
    return this.#queue.take();
  }

  /** Everything that is to be applied before what this scope queues next. */
  takeAllCommands(): { queue: CommandQueue; commands: QueuedCommand[] }[] {
    const outer = this.#committer === this ? [] : (this.#joined?.takeAllCommands() ?? []);
    return [...outer, { queue: this.#queue, commands: this.#queue.take() }];
  }

  /**
   * What joined work queued becomes the outer scope's, if that commits at all; otherwise it is applied now.
   *
   * @throws LockTransactionError when something was refused
   */
  async handIn(): Promise<void> {
    const commands = this.#queue.take();
    const joined = this.#joined;
    if (joined && this.#committer !== this) {
      joined.#queue.add(commands);
      for (const grant of this.#reliedOn()) joined.#borrow(grant);
      if (this.#listeners) (joined.#listeners ??= []).push(...this.#listeners);
    } else if (commands.length > 0) {
      await this.#commitNow(commands);
    }
  }

  /** Tells the listeners, the outer scopes' first, and waits for them; one that fails stops none of the others. */
  async reportCommit(replies: unknown[]): Promise<void> {
    for (const listener of this.#allListeners()) {
      try {
        await listener(replies);
      } catch (error) {
        this.#host.onListenerError(error);
      }
    }
  }

  isQueue(value: unknown): boolean {
    return value === this.#queue.multi;
  }

  async #commitNow(commands: readonly QueuedCommand[]): Promise<unknown[]> {
    this.countCommit(1); // before anything can be applied
    const committer = this.#committer;
    let replies: unknown[];
    try {
      const { lease } = this.#root.#grant;
      const watch = committer.takeWatch();
      replies = await this.#host.commitNow(lease, this.#leasesReliedOn(), commands, watch);
    } catch (error) {
      if (wasNothingApplied(error)) this.countCommit(-1);
      throw committer.noteRefusal(error);
    }
    await this.reportCommit(replies);
    return replies;
  }

  /** The scope whose end commits what is queued here: the outermost one that it joined and that has a `multi`. */
  get #committer(): LockScope {
    const joined = this.#joined;
    return joined && joined.#transaction ? joined.#committer : this;
  }

  /** The one that holds the lock. */
  get #root(): LockScope {
    return this.#joined ? this.#joined.#root : this;
  }

  /** Remembers what a commit was refused with; answers with the same error. */
  noteRefusal(error: unknown): unknown {
    if (isRefusal(error)) (this.#refusals ??= []).push(error);
    return error;
  }

  #assertTransaction(what: string): void {
    this.#assertOpen();
    if (this.#transaction) return;
    throw new LockScopeError(`There is no ${what} here: the lock was taken with transaction: false`, {
      resources: resourcesOf(this.#setting.keys),
    });
  }

  async #endAfter(visits: ReadonlySet<Promise<void>>): Promise<void> {
    while (visits.size > 0) await Promise.all(visits);
    this.#isOpen = false;
  }

  #borrow(grant: Grant): void {
    if (grant !== this.#grant) (this.#borrowed ??= new Set()).add(grant);
  }

  #reliedOn(): readonly Grant[] {
    return [this.#grant, ...this.borrowed];
  }

  /** All leases that have to be held for a commit from here; the one it is sent under may be among them. */
  #leasesReliedOn(): readonly Lease[] {
    const root = this.#joined ? this.#joined.#leasesReliedOn() : [];
    return [...new Set([...root, ...this.#reliedOn().map(({ lease }) => lease)])];
  }

  #allListeners(): CommitListener[] {
    const outer = this.#joined ? this.#joined.#allListeners() : [];
    return this.#listeners ? [...outer, ...this.#listeners] : outer;
  }

  #assertOpen(): void {
    if (this.#isOpen) return;
    throw new LockScopeError('The lock scope has ended: its LockContext cannot be used any more', {
      resources: resourcesOf(this.#setting.keys),
    });
  }
}

/** How many scopes have a connection that watches, from this one outwards. */
function watchersAround(scope: LockScope): number {
  let count = 0;
  for (let { outer } = scope; outer !== undefined; outer = outer.outer) if (outer.isWatching) count += 1;
  return count;
}

/** A commit that was refused, for a reason that may be gone when the work has run again. */
export type Refusal = LockLostError | LockConflictError | WatchEndedError;

export function isRefusal(error: unknown): error is Refusal {
  return (
    error instanceof LockLostError || error instanceof LockConflictError || error instanceof WatchEndedError
  );
}

/** The errors of a commit that prove it. */
export function wasNothingApplied(error: unknown): boolean {
  if (error instanceof LockTransactionError) return error.applied === 'none';
  return isRefusal(error) || error instanceof LockUnavailableError;
}

/** @param context the one that the work was given */
export function forbidRerun(context: LockContext): void {
  if (context instanceof LockScope) context.forbidRerun();
}
