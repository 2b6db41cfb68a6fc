import {
  LockLostError,
  LockScopeError,
  LockTransactionError,
  LockUnavailableError,
} from '../errors/lock.errors.js';
import type { Lease } from '../lock/lease.js';
import type { Lock } from '../lock/lock.js';
import type { RedisClient } from '../redis/redis-client.js';
import { LockContext } from './lock-context.js';
import { CommandQueue } from './lock-transaction.js';
import type { LockTransaction, QueuedCommand } from './lock-transaction.js';

export interface ScopeParts {
  /** The lock service it belongs to: scopes of different ones never join. */
  readonly service: object;
  readonly lock: Lock;
  readonly lease: Lease;
  /** Leases of outer scopes that this one relies on. */
  readonly borrowed: readonly Lease[];
  readonly redis: RedisClient;
  readonly knownCommands: ReadonlySet<string>;
  /** Whether the work has a `multi`. */
  readonly transaction: boolean;
  /** Applies commands now and keeps the lock. */
  readonly commitNow: (commands: readonly QueuedCommand[]) => Promise<unknown[]>;
  /** Told of the error of a commit listener: what was committed stays committed. */
  readonly onListenerError: (error: unknown) => void;
  /** The scope whose code runs this one. */
  readonly outer: LockScope | undefined;
}

type CommitListener = (replies: unknown[]) => unknown;

/** Somebody who uses a scope that is not their own: they take turns, and the scope does not end before they left. */
export interface Visit {
  readonly turn: Promise<void>;
  leave(): void;
}

/**
 * One run of work under a lock: the context the work is given, from its start to its end. Work that asks for the same
 * lock again joins: it gets a scope of its own on the same lock, and what it queued goes to the outer one when it has
 * ended well, or nowhere.
 */
export class LockScope extends LockContext {
  readonly #parts: ScopeParts;
  readonly #joined: LockScope | undefined;
  readonly #queue: CommandQueue;
  readonly #visits = new Set<Promise<void>>();
  readonly #listeners: CommitListener[] = [];
  #lastTurn: Promise<void> = Promise.resolve();
  #isOpen = true;
  /** Commits that were applied or may have been, and what else must not happen twice. */
  #commits = 0;

  constructor(parts: ScopeParts, joined?: LockScope) {
    super();
    this.#parts = parts;
    this.#joined = joined;
    this.#queue = new CommandQueue(parts.knownCommands, parts.lock.resources, () => this.#assertOpen());
    // Work takes its context apart: `({ multi, key }) => ..`
    this.key = this.key.bind(this);
    this.commit = this.commit.bind(this);
    this.afterCommit = this.afterCommit.bind(this);
  }

  get lock(): Lock {
    this.#assertOpen();
    return this.#parts.lock;
  }

  get signal(): AbortSignal {
    return this.lock.signal;
  }

  get fencingToken(): number {
    return this.lock.fencingToken;
  }

  get redis(): RedisClient {
    this.#assertOpen();
    return this.#parts.redis;
  }

  get multi(): LockTransaction {
    this.#assertOpen();
    if (!this.#parts.transaction) {
      throw new LockScopeError('There is no `multi` here: the lock was taken with transaction: false', {
        resources: this.#parts.lock.resources,
      });
    }
    return this.#queue.multi;
  }

  key(...parts: (string | number)[]): string {
    this.#assertOpen();
    return [`{${this.#parts.lease.keys[0]?.tag}}`, ...parts].join(':');
  }

  async commit(): Promise<unknown[]> {
    this.#assertOpen();
    const before = this.#joined?.takeAllCommands() ?? [];
    const own = this.#queue.take();
    if (before.length + own.length === 0) return [];
    const replies = await this.#commitNow([...before, ...own]);
    return replies.slice(before.length);
  }

  afterCommit(listener: CommitListener): void {
    this.#assertOpen();
    this.#listeners.push(listener);
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  get outer(): LockScope | undefined {
    return this.#parts.outer;
  }

  get lease(): Lease {
    return this.#parts.lease;
  }

  /** Whether code in this scope has the lock with that owner key, in this service. */
  holds(service: object, ownerKey: string): boolean {
    if (service !== this.#parts.service) return false;
    return [this.#parts.lease, ...this.#parts.borrowed].some(({ keys }) =>
      keys.some(({ owner }) => owner === ownerKey),
    );
  }

  /** Whether anything was applied, or may have been: then the work must not run again. */
  get hasCommitted(): boolean {
    return this.#commits > 0;
  }

  /** For work that was seen to begin: what it gave out cannot be taken back. */
  forbidRerun(): void {
    this.#countCommit(1);
  }

  /** Whether somebody wants to hear the replies of a commit. */
  get isListenedTo(): boolean {
    return this.#allListeners().length > 0;
  }

  /** A scope on the same lock, for work inside of this one. */
  join(outer: LockScope | undefined, transaction: boolean): LockScope {
    return new LockScope({ ...this.#parts, outer, transaction }, this);
  }

  /** Registers a visitor at once; its turn comes when those before it have left. */
  visit(): Visit {
    const turn = this.#lastTurn;
    let leave = () => undefined as void;
    const left = new Promise<void>((resolve) => (leave = resolve));
    this.#lastTurn = Promise.all([turn, left]).then(() => undefined);
    this.#visits.add(left);
    void left.then(() => this.#visits.delete(left));
    return { turn, leave };
  }

  /** Closes the scope to the work, after the last visitor has left. */
  async end(): Promise<void> {
    while (this.#visits.size > 0) await Promise.all(this.#visits);
    this.#isOpen = false;
  }

  /** @throws LockTransactionError when something was refused */
  takeCommands(): QueuedCommand[] {
    return this.#queue.take();
  }

  /** Everything that is to be applied before what this scope queues next. */
  takeAllCommands(): QueuedCommand[] {
    return [...(this.#joined?.takeAllCommands() ?? []), ...this.#queue.take()];
  }

  /**
   * What joined work queued becomes the outer scope's, if that commits at all; otherwise it is applied now.
   *
   * @throws LockTransactionError when something was refused
   */
  async handIn(): Promise<void> {
    const commands = this.#queue.take();
    const joined = this.#joined;
    if (joined && joined.#parts.transaction) {
      joined.#queue.add(commands);
      joined.#listeners.push(...this.#listeners);
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
        this.#parts.onListenerError(error);
      }
    }
  }

  isQueue(value: unknown): boolean {
    return value === this.#queue.multi;
  }

  async #commitNow(commands: readonly QueuedCommand[]): Promise<unknown[]> {
    this.#countCommit(1); // before anything can be applied
    let replies: unknown[];
    try {
      replies = await this.#parts.commitNow(commands);
    } catch (error) {
      if (wasNothingApplied(error)) this.#countCommit(-1);
      throw error;
    }
    await this.reportCommit(replies);
    return replies;
  }

  #countCommit(by: number): void {
    this.#commits += by;
    if (this.#joined) this.#joined.#countCommit(by);
  }

  #allListeners(): CommitListener[] {
    const outer = this.#joined ? this.#joined.#allListeners() : [];
    return [...outer, ...this.#listeners];
  }

  #assertOpen(): void {
    if (this.#isOpen) return;
    throw new LockScopeError('The lock scope has ended: its LockContext cannot be used any more', {
      resources: this.#parts.lock.resources,
    });
  }
}

/** The errors of a commit that prove it. */
function wasNothingApplied(error: unknown): boolean {
  if (error instanceof LockTransactionError) return error.applied === 'none';
  return error instanceof LockLostError || error instanceof LockUnavailableError;
}

/** @param context the one that the work was given */
export function forbidRerun(context: LockContext): void {
  if (context instanceof LockScope) context.forbidRerun();
}
