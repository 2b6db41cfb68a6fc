import type { OnApplicationShutdown } from '@nestjs/common';
import { LockConfigurationError, LockScopeError } from '../errors/lock.errors.js';
import type { LockContext } from '../transaction/lock-context.js';
import type { LockScopes } from '../transaction/lock-scopes.js';

/** Those who observe a handler, one of each application. */
const OBSERVERS: unique symbol = Symbol('nestjs-redis-lock.observers');

type Handler = ((...args: never[]) => unknown) & { [OBSERVERS]?: Set<HandlerCalls> };

/**
 * Sees what handlers are called for. An interceptor is only given an Observable of the handler's result: who
 * unsubscribes from it, as a timeout does, gives the request up while the handler runs on. But Nest calls each handler
 * by its `apply`, which can be the handler's own.
 */
export class HandlerCalls implements OnApplicationShutdown {
  readonly #scopes: LockScopes;
  readonly #runs = new WeakMap<LockContext, HandlerRun>();
  readonly #handlers = new Set<Handler>();

  constructor(scopes: LockScopes) {
    this.#scopes = scopes;
  }

  /**
   * Observes the calls of the handler that are made in a scope.
   *
   * @throws LockConfigurationError for a handler that is frozen
   */
  begin(handler: Handler, context: LockContext): HandlerRun {
    if (!this.#handlers.has(handler)) {
      observersOf(handler).add(this);
      this.#handlers.add(handler);
    }
    const run = new HandlerRun(handler);
    this.#runs.set(context, run);
    return run;
  }

  /** The runs of that handler that the calling code is part of. */
  runsOf(handler: Handler): HandlerRun[] {
    const runs: HandlerRun[] = [];
    for (let scope = this.#scopes.innermost; scope !== undefined; scope = scope.outer) {
      const run = this.#runs.get(scope);
      if (run?.handler === handler) runs.push(run);
    }
    return runs;
  }

  /** Called by Nest. Handlers live as long as their classes, longer than the application. */
  onApplicationShutdown(): void {
    for (const handler of this.#handlers) handler[OBSERVERS]?.delete(this);
    this.#handlers.clear();
  }
}

/** What came of a handler that runs under a lock. */
export class HandlerRun {
  readonly handler: Handler;
  #results: Promise<unknown>[] = [];
  #running = 0;
  #hasEnded = false;

  constructor(handler: Handler) {
    this.handler = handler;
  }

  get isRunning(): boolean {
    return this.#running > 0;
  }

  /** @throws LockScopeError when the lock was given up already, while pipes still ran */
  assertOpen(): void {
    if (!this.#hasEnded) return;
    throw new LockScopeError(
      'The request was given up on before its handler was called, and so was its lock',
    );
  }

  /** @returns the same result, or a promise of it */
  hasReturned(result: unknown): unknown {
    if (!isThenable(result)) {
      this.#results.push(Promise.resolve(result));
      return result;
    }
    // Some begin their work when `then` is called, each time.
    const promise = Promise.resolve(result);
    this.#results.push(promise);
    this.#running += 1;
    const onEnd = () => void (this.#running -= 1);
    promise.then(onEnd, onEnd);
    return promise;
  }

  /**
   * Waits until no call of the handler runs any more.
   *
   * @returns what the last one came to; undefined when there was none
   * @throws what the last one threw
   */
  async result(): Promise<{ readonly value: unknown } | undefined> {
    while (this.isRunning) await Promise.allSettled(this.#results);
    const last = this.#results.at(-1);
    return last && { value: await last };
  }

  /** From now on the handler is not called any more in this scope. */
  end(): void {
    this.#hasEnded = true;
    this.#results = [];
  }
}

function observersOf(handler: Handler): Set<HandlerCalls> {
  const known = handler[OBSERVERS];
  if (known) return known;
  if (!Object.isExtensible(handler)) {
    throw new LockConfigurationError(
      `LockInterceptor cannot see when the handler "${handler.name}" ends, since it is frozen: use @WithLock instead`,
    );
  }
  const observers = new Set<HandlerCalls>();
  // `this` and not the handler: what replaces the handler may have copied its properties.
  function apply(this: Handler, self: unknown, args: readonly unknown[] = []): unknown {
    const runs = [...observers].flatMap((each) => each.runsOf(this));
    for (const run of runs) run.assertOpen();
    const result: unknown = Reflect.apply(this, self, args as never[]);
    return runs.reduce((passedOn: unknown, run) => run.hasReturned(passedOn), result);
  }
  Object.defineProperty(handler, OBSERVERS, { value: observers });
  Object.defineProperty(handler, 'apply', { value: apply, configurable: true, writable: true });
  return observers;
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return (
    typeof value === 'object' && value !== null && typeof (value as { then?: unknown }).then === 'function'
  );
}
