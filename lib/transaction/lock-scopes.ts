import { AsyncLocalStorage } from 'node:async_hooks';
import { LockScopeError } from '../errors/lock.errors.js';
import type { Lock } from '../lock/lock.js';
import type { RedisClient } from '../redis/redis-client.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import { LockContext } from './lock-context.js';
import type { LockScope } from './lock-scope.js';
import type { LockTransaction } from './lock-transaction.js';

/** Which of the wanted resources the calling code has already, through which scopes, the outermost first. */
export interface Held {
  readonly holders: readonly LockScope[];
  readonly missing: readonly ResourceKeys[];
}

/** The scopes of one application, each known to the code that runs in it. */
export class LockScopes {
  readonly #storage = new AsyncLocalStorage<LockScope>();

  run<T>(scope: LockScope, work: () => T): T {
    return this.#storage.run(scope, work);
  }

  /** The innermost scope, also when it has ended. */
  get innermost(): LockScope | undefined {
    return this.#storage.getStore();
  }

  /** Whether the calling code runs in a scope that has not ended: its locks are needed for work to end. */
  get isInside(): boolean {
    return [...this.#outwards()].length > 0;
  }

  held(service: object, keys: readonly ResourceKeys[]): Held {
    const holders = new Set<LockScope>();
    const missing = new Set(keys);
    for (const scope of this.#outwards()) {
      for (const key of missing) {
        if (!scope.holds(service, key.owner)) continue;
        holders.add(scope);
        missing.delete(key);
      }
    }
    return { holders: [...holders].reverse(), missing: [...missing] };
  }

  *#outwards(): Iterable<LockScope> {
    for (let scope = this.innermost; scope !== undefined; scope = scope.outer) {
      if (scope.isOpen) yield scope;
    }
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
    return this.#scope.lock;
  }

  get signal(): AbortSignal {
    return this.#scope.signal;
  }

  get fencingToken(): number {
    return this.#scope.fencingToken;
  }

  get redis(): RedisClient {
    return this.#scope.redis;
  }

  get multi(): LockTransaction {
    return this.#scope.multi;
  }

  key(...parts: (string | number)[]): string {
    return this.#scope.key(...parts);
  }

  async commit(): Promise<unknown[]> {
    return this.#scope.commit();
  }

  afterCommit(listener: (replies: unknown[]) => void): void {
    this.#scope.afterCommit(listener);
  }

  get #scope(): LockScope {
    const scope = this.#scopes.innermost;
    if (scope === undefined) {
      throw new LockScopeError('LockContext was used outside of @WithLock and withLock()');
    }
    return scope;
  }
}
