import { AsyncLocalStorage } from 'node:async_hooks';
import type { RedisClient } from '../redis/connections.js';
import { LockScopeError } from '../errors/lock.errors.js';
import type { Lock } from '../lock/lock.js';
import { LockContext } from './lock-context.js';
import { CommandQueue } from './lock-transaction.js';
import type { LockTransaction, QueuedCommand } from './lock-transaction.js';

/** Applies commands under a lock that is kept. */
export type CommitNow = (commands: readonly QueuedCommand[]) => Promise<unknown[]>;

export interface ScopeParts {
  readonly lock: Lock;
  readonly redis: RedisClient;
  readonly commands: ReadonlySet<string>;
  /** Hash tag of the lock's keys. */
  readonly tag: string;
  /** Undefined: the caller wants no transaction. */
  readonly commitNow: CommitNow | undefined;
}

/** One run of the work under its lock: the context it is given, from its start to its end. */
export class LockScope extends LockContext {
  readonly #parts: ScopeParts;
  readonly #queue: CommandQueue;
  readonly #listeners: ((replies: unknown[]) => void)[] = [];
  #ended = false;
  #committed = false;

  constructor(parts: ScopeParts) {
    super();
    this.#parts = parts;
    this.#queue = new CommandQueue(parts.commands, parts.lock.resources, () => this.#assertOpen());
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
    if (this.#parts.commitNow === undefined) {
      throw new LockScopeError('There is no `multi` here: the lock was taken with transaction: false', {
        resources: this.#parts.lock.resources,
      });
    }
    return this.#queue.multi;
  }

  key(...parts: (string | number)[]): string {
    this.#assertOpen();
    return [`{${this.#parts.tag}}`, ...parts].join(':');
  }

  async commit(): Promise<unknown[]> {
    this.#assertOpen();
    const { commitNow } = this.#parts;
    const commands = this.#queue.take();
    if (commands.length === 0 || commitNow === undefined) return [];
    const replies = await commitNow(commands);
    this.reportCommit(replies);
    return replies;
  }

  afterCommit(listener: (replies: unknown[]) => void): void {
    this.#assertOpen();
    this.#listeners.push(listener);
  }

  /** Whether anything was applied: then the work must not run again. */
  get hasCommitted(): boolean {
    return this.#committed;
  }

  /** Tells the listeners; one that throws stops none of the others. */
  reportCommit(replies: unknown[]): void {
    this.#committed = true;
    const errors: unknown[] = [];
    for (const listener of this.#listeners) {
      try {
        listener(replies);
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }

  /** Closes the scope to the work. */
  end(): void {
    this.#ended = true;
  }

  /** @throws LockTransactionError when something was refused */
  takeCommands(): QueuedCommand[] {
    return this.#queue.take();
  }

  isQueue(value: unknown): boolean {
    return value === this.#queue.multi;
  }

  #assertOpen(): void {
    if (!this.#ended) return;
    throw new LockScopeError('The lock scope has ended: its LockContext cannot be used any more', {
      resources: this.#parts.lock.resources,
    });
  }
}

/** The scopes of one application, each known to the code that runs in it. */
export class LockScopes {
  readonly #storage = new AsyncLocalStorage<LockScope>();

  run<T>(scope: LockScope, work: () => T): T {
    return this.#storage.run(scope, work);
  }

  /** @throws LockScopeError outside of any scope */
  get current(): LockScope {
    const scope = this.#storage.getStore();
    if (scope === undefined) {
      throw new LockScopeError('LockContext was used outside of @WithLock and withLock()');
    }
    return scope;
  }
}

/** The injectable LockContext: speaks for the innermost scope that the caller runs in. */
export class CurrentLockContext extends LockContext {
  readonly #scopes: LockScopes;

  constructor(scopes: LockScopes) {
    super();
    this.#scopes = scopes;
  }

  get lock(): Lock {
    return this.#scopes.current.lock;
  }

  get signal(): AbortSignal {
    return this.#scopes.current.signal;
  }

  get fencingToken(): number {
    return this.#scopes.current.fencingToken;
  }

  get redis(): RedisClient {
    return this.#scopes.current.redis;
  }

  get multi(): LockTransaction {
    return this.#scopes.current.multi;
  }

  key(...parts: (string | number)[]): string {
    return this.#scopes.current.key(...parts);
  }

  async commit(): Promise<unknown[]> {
    return this.#scopes.current.commit();
  }

  afterCommit(listener: (replies: unknown[]) => void): void {
    this.#scopes.current.afterCommit(listener);
  }
}
