import { Subject, from, isObservable, takeUntil } from 'rxjs';
import type { LockContext } from '../transaction/lock-context.js';
import { scopeOf } from '../transaction/lock-scope.js';
import type { LockScope } from '../transaction/lock-scope.js';
import type { Mark } from '../transaction/pending.js';
import type { HandlerRun } from './handler-calls.js';
import { refuseBody } from './read-later.js';

/** Why work ends whose values nobody wants any more. */
export const UNSUBSCRIBED = new Error('The Observable was unsubscribed from before its end');

export interface Observed {
  /** For messages. */
  readonly method: string;
  readonly context: LockContext;
  /** Aborted when nobody listens any more. */
  readonly left: AbortSignal;
  /** Whether it ends when its lock is lost after a value was given out: it may never end by itself. */
  readonly endsWithLock: boolean;
  /** Of an interceptor: the handler whose result the Observable has. */
  readonly handler: HandlerRun | undefined;
  give(value: unknown): void;
  /** Tells of an error at once, while the work goes on. Nobody listens from then on. */
  fail(error: unknown): void;
}

type End = { readonly how: 'completed' | 'left' } | { readonly how: 'failed'; readonly error: unknown };

interface Held {
  readonly value: unknown;
  /** What was queued before it. */
  readonly mark: Mark;
}

/**
 * An Observable as the work under a lock. What it queued is committed when it has completed, or was left after it had
 * given out a value: then without what it queued since. A value that the completion follows at once, as the only one of
 * a promise, is given out after the commit; others as they come, since nobody can tell whether another one follows.
 */
export class ObservedWork {
  readonly #observed: Observed;
  readonly #scope: LockScope;
  readonly #stop = new Subject<void>();
  readonly #ended: Promise<End>;
  #end: (end: End) => void = () => undefined;
  #hasEnded = false;
  #held: Held | undefined;
  /** What was queued before the last value that was given out. */
  #given: Mark | undefined;
  #mayRunAgain = true;

  constructor(observed: Observed) {
    this.#observed = observed;
    this.#scope = scopeOf(observed.context);
    this.#ended = new Promise((resolve) => {
      this.#end = (end) => {
        this.#hasEnded = true;
        resolve(end); // the first one counts: a source that is stopped completes
        this.#stop.next();
      };
    });
  }

  /**
   * Subscribes within the scope that it is called in.
   *
   * @param work answers with the Observable, or with its only value
   * @returns the value to give out after the commit, if there is one
   * @throws what it failed with, or {@link UNSUBSCRIBED}
   */
  async run(work: () => unknown): Promise<unknown[]> {
    const { left, handler, endsWithLock } = this.#observed;
    if (left.aborted) throw UNSUBSCRIBED; // it would run again
    const { signal } = this.#scope;
    const onLeft = () => this.#end({ how: 'left' });
    const onLost = () => this.#given !== undefined && this.#end({ how: 'failed', error: signal.reason });
    left.addEventListener('abort', onLeft);
    if (endsWithLock) signal.addEventListener('abort', onLost);
    try {
      this.#subscribe(work());
      const end = await this.#ended;
      if (end.how === 'failed') throw end.error;
      return await (end.how === 'completed' ? this.#complete() : this.#leave());
    } finally {
      left.removeEventListener('abort', onLeft);
      signal.removeEventListener('abort', onLost);
      handler?.end();
    }
  }

  #subscribe(result: unknown): void {
    const source = isObservable(result) ? result : from(Promise.resolve(result));
    source.pipe(takeUntil(this.#stop)).subscribe({
      next: (value) => this.#next(value),
      error: (error: unknown) => {
        this.#give();
        if (this.#observed.handler?.isRunning) this.#observed.fail(error);
        else this.#end({ how: 'failed', error });
      },
      complete: () => this.#end({ how: 'completed' }),
    });
  }

  #next(value: unknown): void {
    this.#give(); // it was not the last one
    if (this.#hasEnded) return;
    try {
      refuseBody(value, this.#observed.method);
    } catch (error) {
      return this.#end({ how: 'failed', error });
    }
    if (!this.#observed.handler) this.#forbidRerun(); // a request is answered once, by whatever run comes to its end
    const held = { value, mark: this.#scope.mark };
    this.#held = held;
    void Promise.resolve().then(() => {
      if (this.#held === held && !this.#hasEnded) this.#give();
    });
  }

  #give(): void {
    const held = this.#held;
    if (!held) return;
    this.#held = undefined;
    this.#given = held.mark;
    this.#forbidRerun(); // it cannot be taken back
    this.#observed.give(held.value);
  }

  #forbidRerun(): void {
    if (this.#mayRunAgain) this.#scope.forbidRerun();
    this.#mayRunAgain = false;
  }

  async #complete(): Promise<unknown[]> {
    const { handler } = this.#observed;
    if (handler?.isRunning) await handler.result(); // something else was answered in its place
    return this.#held ? [this.#held.value] : [];
  }

  async #leave(): Promise<unknown[]> {
    const ended = await this.#observed.handler?.result();
    const endedWell = ended !== undefined && !isObservable(ended.value); // and nobody could have stopped it
    if (!endedWell) {
      if (this.#given === undefined) throw UNSUBSCRIBED;
      this.#scope.cutAt(this.#given);
    }
    return [];
  }
}
