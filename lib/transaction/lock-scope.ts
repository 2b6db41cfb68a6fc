import {
  LockConfigurationError,
  LockConflictError,
  LockLostError,
  LockOutcomeUnknownError,
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
import { Batch, Listening, repliesByListener } from './batch.js';
import type { CommitListener } from './batch.js';
import { LockContext } from './lock-context.js';
import { CommandQueue, keyElsewhere } from './lock-transaction.js';
import type { LockTransaction, QueuedCommand, TransactionClient } from './lock-transaction.js';
import { letGo, Pending } from './pending.js';
import type { Mark, Taken } from './pending.js';
import { ScopeLife } from './scope-life.js';
import type { Visits } from './visits.js';
import { WatchEndedError } from './watch.js';
import type { Watch } from './watch.js';

/** What all scopes of a lock service have in common. */
export interface ScopeHost extends TransactionClient {
  /** The lock service: scopes of different ones never join. */
  readonly service: object;
  readonly redis: RedisClient;
  /**
   * Applies commands now, under the lock and what it relies on, and keeps them. Ends the watch.
   *
   * @returns undefined when they are applied but their replies are lost
   */
  commitNow(
    lease: Lease,
    reliedOn: readonly Lease[],
    commands: readonly QueuedCommand[],
    watch: Watch | undefined,
  ): Promise<unknown[] | undefined>;
  /** @param held connections of outer scopes that watch */
  openWatch(lease: Lease, held: number): Watch;
  /** Runs a listener of a commit in a scope of its own, to its end. Never rejects: what was committed stays so. */
  runListener(scope: LockScope, listener: () => unknown): Promise<void>;
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
  readonly #life: ScopeLife;
  readonly #pending: Pending;
  /** Made when needed, as most of what follows: most scopes have none. */
  #borrowed: Set<Grant> | undefined;
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
   * @param isListener whether the work is a listener of a commit: it can read, and has no lock of its own
   */
  constructor(
    host: ScopeHost,
    grant: Grant,
    setting: Setting,
    transaction: boolean,
    joined?: LockScope,
    isListener = false,
  ) {
    super();
    this.#host = host;
    this.#setting = setting;
    this.#grant = grant;
    this.#transaction = transaction;
    this.#joined = joined;
    if (setting.borrowed.length > 0) this.#borrowed = new Set(setting.borrowed);
    const life = new ScopeLife(setting.keys, isListener);
    this.#life = life;
    this.#pending = new Pending(new CommandQueue(host, setting.keys, () => life.assertWorking()));
    // Work takes its context apart: `({ multi, key }) => ..`
    this.key = this.key.bind(this);
    this.watch = this.watch.bind(this);
    this.commit = this.commit.bind(this);
    this.afterCommit = this.afterCommit.bind(this);
  }

  get lock(): Lock {
    this.#life.assertReadable();
    return this.#grant.lock;
  }

  get signal(): AbortSignal {
    return this.lock.signal;
  }

  get fencingToken(): number {
    return this.lock.fencingToken;
  }

  get redis(): RedisClient {
    this.#life.assertReadable();
    return this.#host.redis;
  }

  get multi(): LockTransaction {
    this.#assertTransaction('`multi`');
    return this.#pending.queue.multi;
  }

  key(...parts: (string | number)[]): string {
    this.#life.assertReadable();
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

  commit(): Promise<unknown[]> {
    return this.#life.awaitCommit(this.#commit());
  }

  afterCommit(listener: CommitListener): void {
    this.#life.assertWorking();
    this.#pending.listen(new Listening(this, listener));
  }

  get isOpen(): boolean {
    return this.#life.isOpen;
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
    if (service !== this.#host.service || this.#life.isListener) return undefined;
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

  /** A scope for work inside of this one, on locks that it has. */
  join(grant: Grant, setting: Setting, transaction: boolean): LockScope {
    return new LockScope(this.#host, grant, setting, transaction, this);
  }

  /** Those who use it without being its own work. */
  get visits(): Visits {
    return this.#life.visits;
  }

  /** The work has thrown: from now on nobody can commit what it had queued. */
  fail(): void {
    this.#life.fail();
    this.discard();
  }

  /**
   * Closes the scope to the work: at once, or after the last visitor has left and the last commit() has ended.
   *
   * @throws what a commit() came to that the work had not waited for
   */
  end(): Promise<void> | undefined {
    let failure: { readonly error: unknown } | undefined;
    const ended = this.#life.end((error) => {
      failure ??= { error };
      this.fail();
    });
    return ended?.then(() => {
      if (failure) throw failure.error;
    });
  }

  /** What its work has queued so far. */
  get mark(): Mark {
    return this.#pending.mark;
  }

  /** Drops what its work has queued since, by others too; from now on nothing more can be queued. */
  cutAt(mark: Mark): void {
    this.#life.leave();
    this.#pending.cutAt(mark);
  }

  /**
   * What is left to be committed at the end, with all listeners.
   *
   * @throws LockTransactionError when something was refused
   */
  takeAll(): Batch {
    return this.#pending.takeAll();
  }

  /**
   * What joined work queued becomes the outer scope's, if that commits at all; otherwise it is applied now.
   *
   * @throws LockTransactionError when something was refused
   */
  async handIn(): Promise<void> {
    const batch = this.#pending.take();
    if (this.#committer !== this) this.#send(this.#joined, batch.handedIn(this.#reliedOn()));
    else if (batch.commands.length > 0) await this.#commitNow([batch], false);
    // Those that have nothing to wait for are told at the end of the work that holds the lock.
    this.#send(this.#joined, this.#pending.takeAll().handedIn(NONE));
    this.sendOn();
  }

  /** The work has ended well: what came through it for scopes further out goes on. */
  sendOn(): void {
    for (const parcel of this.#pending.takeParcels()) {
      this.#send(parcel.to, parcel.batch);
      letGo(parcel);
    }
  }

  /** What is still here will not be committed. */
  discard(): void {
    this.#pending.drop();
  }

  /**
   * Tells the listeners of what was applied, the outermost scopes' first, and waits for them.
   *
   * @param replies undefined when they are lost
   * @throws LockOutcomeUnknownError when somebody wanted to hear them
   */
  async reportCommit(batches: readonly Batch[], replies: unknown[] | undefined): Promise<void> {
    if (batches.every(({ listeners }) => listeners.length === 0)) return;
    if (replies === undefined && batches.some(({ isListenedTo }) => isListenedTo)) throw this.#repliesLost();
    for (const { listening, replies: own } of repliesByListener(batches, replies ?? [])) {
      await listening.scope.#tell(this, () => listening.listener(own));
    }
  }

  isQueue(value: unknown): boolean {
    return value === this.#pending.queue.multi;
  }

  async #commit(): Promise<unknown[]> {
    this.#assertTransaction('commit()');
    for (const watcher of this.#committer.#watchers ?? []) {
      if (watcher === this || !watcher.isOpen) continue;
      throw new LockScopeError('commit() would end what other work under the same lock still watches', {
        resources: resourcesOf(this.#setting.keys),
      });
    }
    this.#pending.queue.assertSound();
    const before = this.#takeBefore();
    const own = this.#pending.take();
    const batches = [...before.map(({ batch }) => batch), own];
    if (batches.every((batch) => batch.commands.length === 0)) return [];
    let applied = true;
    try {
      const replies = await this.#commitNow(batches, true);
      return replies.slice(replies.length - own.commands.length);
    } catch (error) {
      applied = !wasNothingApplied(error);
      throw error;
    } finally {
      // The caller hears that its commit failed; what others had queued is not part of that.
      for (const taken of before) taken.settle(applied);
    }
  }

  /**
   * Takes what was queued under the same lock before what this scope has queued: from the outermost scope inwards.
   *
   * @throws LockTransactionError when something was refused in one of them; then all of them keep what they have
   */
  #takeBefore(): Taken[] {
    const committer = this.#committer;
    const joined = new Set(this.#joins());
    for (const scope of joined) scope.#pending.queue.assertSound();
    return this.#wayTo(committer).flatMap((scope) => scope.#pending.takeFor(joined, scope));
  }

  /** The scopes that it joined, up to the one that commits. */
  #joins(): LockScope[] {
    const joined = this.#joined;
    return joined && this.#committer !== this ? [joined, ...joined.#joins()] : [];
  }

  /** The scopes around this one, from the given one inwards. */
  #wayTo(outermost: LockScope): LockScope[] {
    const { outer } = this.#setting;
    return outer && this !== outermost ? [...outer.#wayTo(outermost), outer] : [];
  }

  /**
   * @param forReplies whether the caller wants the replies
   * @returns the replies to all commands, in order; none when they are lost and not wanted
   */
  async #commitNow(batches: readonly Batch[], forReplies: boolean): Promise<unknown[]> {
    this.countCommit(1); // before anything can be applied
    const committer = this.#committer;
    const commands = batches.flatMap((batch) => batch.commands);
    const relied = batches.flatMap(({ grants }) => grants.map(({ lease }) => lease));
    const leases = [...new Set([...this.#leasesReliedOn(), ...relied])];
    let replies: unknown[] | undefined;
    try {
      const { lease } = this.#root.#grant;
      replies = await this.#host.commitNow(lease, leases, commands, committer.takeWatch());
    } catch (error) {
      if (wasNothingApplied(error)) this.countCommit(-1);
      throw committer.noteRefusal(error);
    }
    await this.reportCommit(batches, replies);
    if (replies === undefined && forReplies) throw this.#repliesLost();
    return replies ?? [];
  }

  #repliesLost(): LockOutcomeUnknownError {
    const { resources } = this.#root.#grant.lease;
    return new LockOutcomeUnknownError('The commit was applied, but its replies were lost', { resources });
  }

  /** What joined work hands in goes by way of the scopes in between: their work has to end well, too. */
  #send(to: LockScope | undefined, batch: Batch): void {
    const { outer } = this;
    if (to && outer) outer.#receive(to, batch, this.#pending.isCut);
  }

  #receive(to: LockScope, batch: Batch, isOld: boolean): void {
    if (to === this) {
      this.#pending.add(batch, isOld);
      for (const grant of batch.grants) this.#borrow(grant);
    } else if (!batch.isEmpty) {
      const visits = [];
      for (let { outer } = this; outer; outer = outer === to ? undefined : outer.outer) {
        visits.push(outer.visits.begin());
      }
      this.#pending.addParcel({ to, batch, visits }, isOld);
    }
  }

  /**
   * Runs a listener of this scope's work. There, LockContext speaks for that work, and locks are taken inside of the
   * scope that has committed.
   */
  async #tell(committed: LockScope, listener: () => unknown): Promise<void> {
    const { keys } = this.#setting;
    const setting = { keys, borrowed: NONE, outer: committed, visited: committed.visited };
    const scope = new LockScope(this.#host, this.#grant, setting, false, undefined, true);
    await this.#life.tell(() => this.#host.runListener(scope, listener));
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
    this.#life.assertWorking();
    if (this.#transaction) return;
    throw new LockScopeError(`There is no ${what} here: the lock was taken with transaction: false`, {
      resources: resourcesOf(this.#setting.keys),
    });
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
export function scopeOf(context: LockContext): LockScope {
  if (context instanceof LockScope) return context;
  throw new LockScopeError('This LockContext is not the one that work is given');
}
