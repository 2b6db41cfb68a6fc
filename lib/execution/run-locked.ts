import { Observable, from, fromEvent, isObservable, takeUntil } from 'rxjs';
import { LockConfigurationError, LockNotAcquiredError } from '../errors/lock.errors.js';
import type { LockService } from '../lock/lock.service.js';
import type { Resource, WithLockOptions } from '../redis-lock.options.js';
import type { LockContext } from '../transaction/lock-context.js';
import { forbidRerun } from '../transaction/lock-scope.js';

/** What happens when the lock is not to be had: the LockNotAcquiredError, nothing, or what a function says. */
export type OnBusy = 'throw' | 'skip' | ((...args: never[]) => unknown);

/** One call of something that is to run under a lock. */
export interface LockedCall {
  /** May throw, where the instance has none. */
  readonly service: () => LockService;
  /** For messages. */
  readonly method: string;
  readonly resources: () => Resource;
  readonly options: WithLockOptions;
  readonly onBusy: OnBusy;
  readonly args: readonly unknown[];
  readonly work: () => unknown;
  /** Of an Observable: whether its last value waits for the commit. */
  readonly holdsBack?: boolean;
}

/** Key, lock, work, commit. Everything that goes wrong is a rejection; without a lock the work does not run. */
export function runLocked(call: LockedCall): Promise<unknown> {
  const checked = (result: unknown) => {
    const kind = kindOfStream(result);
    if (kind === undefined) return result;
    throw new LockConfigurationError(
      `${call.method}: it returned ${kind}, which would run on without its lock`,
    );
  };
  return acquireAndRun(call, call.options, () => {
    const result = call.work();
    return result instanceof Promise ? result.then(checked) : Promise.resolve(result).then(checked);
  });
}

/** What is consumed after the method has returned, if the result is of that kind. */
function kindOfStream(result: unknown): string | undefined {
  if (isObservable(result)) return "an Observable (say returns: 'observable')";
  const isAsyncIterable = typeof result === 'object' && result !== null && Symbol.asyncIterator in result;
  return isAsyncIterable ? 'an async iterable' : undefined;
}

/**
 * The same for an Observable: the lock is asked for when it is subscribed to, and held until it ends, however it
 * does. What was queued is committed before the completion is passed on. When it is unsubscribed from before its end,
 * nothing is committed.
 */
export function observeLocked(call: LockedCall): Observable<unknown> {
  return new Observable((subscriber) => {
    // Both stop the waiting, but only an unsubscription stops work that has begun.
    const left = new AbortController();
    const unwanted = new AbortController();
    const { signal } = call.options;
    const onAbort = () => unwanted.abort(signal?.reason);
    signal?.addEventListener('abort', onAbort);
    if (signal?.aborted) onAbort();

    let heldBack: unknown[] = [];
    acquireAndRun(call, { ...call.options, signal: unwanted.signal }, (context) => {
      heldBack = [];
      const lossOf = context.signal;
      const onLoss = () => left.abort(lossOf.reason);
      return passOn(call.work(), left.signal, (value) => {
        const values = call.holdsBack ? heldBack : [value];
        if (call.holdsBack) heldBack = [value];
        if (values.length > 0) {
          forbidRerun(context);
          // It may never end by itself, and what it gave out cannot be taken back: with its lock it ends.
          if (call.options.onLost !== 'report') lossOf.addEventListener('abort', onLoss, { once: true });
        }
        for (const each of values) subscriber.next(each);
      }).finally(() => lossOf.removeEventListener('abort', onLoss));
    })
      .then(
        (insteadOfWork) => {
          for (const value of heldBack) subscriber.next(value);
          if (isObservable(insteadOfWork)) return void subscriber.add(insteadOfWork.subscribe(subscriber));
          if (insteadOfWork !== undefined) subscriber.next(insteadOfWork);
          subscriber.complete();
        },
        (error: unknown) => subscriber.error(error),
      )
      .finally(() => signal?.removeEventListener('abort', onAbort));
    return () => {
      left.abort(UNSUBSCRIBED);
      unwanted.abort(UNSUBSCRIBED);
    };
  });
}

const UNSUBSCRIBED = new Error('The Observable was unsubscribed from before its end');

/** Subscribes within the scope that it is called in; settles when the source ends or nobody wants it any more. */
function passOn(result: unknown, left: AbortSignal, next: (value: unknown) => void): Promise<void> {
  const source = isObservable(result) ? result : from(Promise.resolve(result));
  return new Promise((resolve, reject) => {
    const onLeft = () => reject(left.reason); // so that nothing is committed
    left.addEventListener('abort', onLeft);
    const end = (settle: () => void) => {
      left.removeEventListener('abort', onLeft);
      settle();
    };
    source.pipe(takeUntil(fromEvent(left, 'abort'))).subscribe({
      next,
      error: (error: unknown) => end(() => reject(error)),
      complete: () => end(resolve),
    });
    if (left.aborted) onLeft();
  });
}

async function acquireAndRun(
  { service, resources, onBusy, args }: LockedCall,
  options: WithLockOptions,
  work: (context: LockContext) => Promise<unknown>,
): Promise<unknown> {
  let hasRun = false;
  try {
    const locks = service();
    return await locks.withLock(resources(), options, (context) => {
      hasRun = true;
      return work(context);
    });
  } catch (error) {
    // The work may throw such an error as well, of a lock it wanted itself.
    if (hasRun || onBusy === 'throw' || !(error instanceof LockNotAcquiredError)) throw error;
    if (error.cause === UNSUBSCRIBED) throw error; // nobody is there to be told something else
    return onBusy === 'skip' ? undefined : onBusy(...(args as never[]));
  }
}
