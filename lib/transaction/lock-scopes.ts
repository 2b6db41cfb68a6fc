import { AsyncLocalStorage } from 'node:async_hooks';
import type { OnApplicationShutdown } from '@nestjs/common';
import { LockScopeError } from '../errors/lock.errors.js';
import type { Lock } from '../lock/lock.js';
import type { RedisClient } from '../redis/redis-client.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import { LockContext } from './lock-context.js';
import type { LockScope } from './lock-scope.js';
import type { Grant } from '../lock/grant.js';
import type { LockTransaction } from './lock-transaction.js';

/** What the calling code has already of the resources that it wants. */
export interface Held {
  /** The locks of those it has, each once. */
  readonly grants: readonly Grant[];
  readonly missing: readonly ResourceKeys[];
  /** The innermost scope that has one of them. */
  readonly joinable: LockScope | undefined;
  /**
   * The scopes whose turn it has to take, in the order in which everybody does: from the innermost one out to the
   * outermost that has one of them. Those where it has its turn already are left out.
   */
  readonly path: readonly LockScope[];
}

const NONE: readonly never[] = [];

/** The scopes of one application, each known to the code that runs in it. */
export class LockScopes implements OnApplicationShutdown {
  readonly #storage = new AsyncLocalStorage<LockScope>();
  #running = 0;
  #closed = false;

  /** What runs in it is in that scope until {@link end} is told of it. */
  run<T>(scope: LockScope, work: () => T): T {
    this.#running += 1;
    return this.#storage.run(scope, work);
  }

  /** Resolves when the scope has ended, with what it waits for; undefined when it has at once. */
  end(scope: LockScope): Promise<void> | undefined {
    const ended = scope.end();
    if (ended) return ended.finally(() => this.#hasEnded());
    this.#hasEnded();
    return undefined;
  }

  /** Called by Nest. Work under locks that has not ended by then keeps its scope. */
  onApplicationShutdown(): void {
    this.#closed = true;
    this.#disableAfterAll();
  }

  #hasEnded(): void {
    this.#running -= 1;
    this.#disableAfterAll();
  }

  /** Before Node 24, a storage that was used costs something with every promise of the process, and is never freed. */
  #disableAfterAll(): void {
    if (this.#closed && this.#running === 0) this.#storage.disable();
  }

  /** The innermost scope, also when it has ended. */
  get innermost(): LockScope | undefined {
    return this.#storage.getStore();
  }

  /** The innermost scope that has not ended: locks that are wanted in it are needed for work to end. */
  get innermostOpen(): LockScope | undefined {
    const scope = this.innermost;
    return scope?.isOpen ? scope : scope?.outer;
  }

  held(service: object, keys: readonly ResourceKeys[]): Held {
    const innermost = this.innermostOpen;
    if (innermost === undefined) return { grants: NONE, missing: keys, joinable: undefined, path: NONE };
    const grants = new Set<Grant>();
    const missing = new Set(keys);
    const visited = new Set<LockScope>();
    const path: LockScope[] = [];
    let joinable: LockScope | undefined;
    let outwards: LockScope[] = [];
    for (
      let scope: LockScope | undefined = innermost;
      scope !== undefined && missing.size > 0;
      scope = scope.outer
    ) {
      if (!visited.has(scope)) outwards.push(scope);
      for (const each of scope.visited) visited.add(each);
      for (const key of missing) {
        const grant = scope.grantOf(service, key.owner);
        if (grant === undefined) continue;
        grants.add(grant);
        missing.delete(key);
        joinable ??= scope;
        path.push(...outwards);
        outwards = [];
      }
    }
    return { grants: [...grants], missing: [...missing], joinable, path };
  }
}

/** The injectable LockContext: speaks for the innermost scope that the caller runs in. */
export class CurrentLockContext extends LockContext {
  readonly #scopes: LockScopes;

  constructor(scopes: LockScopes) {
    super();
    this.#scopes = scopes;
    // Work takes it apart: `const { multi, key } = this.context`
    this.key = this.key.bind(this);
    this.watch = this.watch.bind(this);
    this.commit = this.commit.bind(this);
    this.afterCommit = this.afterCommit.bind(this);
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

  async watch(...keys: string[]): Promise<void> {
    return this.#scope.watch(...keys);
  }

  /** The promise of the scope itself, so that the scope can wait for it when the work does not. */
  commit(): Promise<unknown[]> {
    try {
      return this.#scope.commit();
    } catch (error) {
      return Promise.reject(error as LockScopeError);
    }
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
