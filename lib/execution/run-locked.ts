import { Logger } from '@nestjs/common';
import { Observable, isObservable } from 'rxjs';
import { LockNotAcquiredError } from '../errors/lock.errors.js';
import { LockService } from '../lock/lock.service.js';
import type { Resource, WithLockOptions } from '../redis-lock.options.js';
import type { LockContext } from '../transaction/lock-context.js';
import type { HandlerRun } from './handler-calls.js';
import { ObservedWork, UNSUBSCRIBED } from './observed-work.js';
import { refuseBody } from './read-later.js';

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
  /** Of an interceptor: begins to observe the handler, which runs on when its Observable is left. */
  readonly observeHandler?: (context: LockContext) => HandlerRun | undefined;
}

/** Key, lock, work, commit. Everything that goes wrong is a rejection; without a lock the work does not run. */
export function runLocked(call: LockedCall): Promise<unknown> {
  const checked = (result: unknown) => refuseBody(result, call.method, "Say returns: 'observable'");
  return acquireAndRun(call, call.options, () => {
    const result = call.work();
    return result instanceof Promise ? result.then(checked) : Promise.resolve(result).then(checked);
  });
}

/**
 * The same for an Observable: the lock is asked for when it is subscribed to, and held until it ends, however it does;
 * see {@link ObservedWork}.
 */
export function observeLocked(call: LockedCall): Observable<unknown> {
  return new Observable((subscriber) => {
    // Both stop the waiting, but only an unsubscription stops work that has begun.
    const left = new AbortController();
    const unwanted = new AbortController();
    const { signal, onLost } = call.options;
    const onAbort = () => unwanted.abort(signal?.reason);
    if (signal?.aborted) onAbort();
    let stopListening = () => undefined as void;
    // Once to each signal, however many calls it was given to: that is the service's.
    const service = () => {
      const locks = call.service();
      if (signal) stopListening = locks.listenTo(signal, onAbort);
      return locks;
    };

    let heldBack: unknown[] = [];
    acquireAndRun({ ...call, service }, { ...call.options, signal: unwanted.signal }, async (context) => {
      heldBack = await new ObservedWork({
        method: call.method,
        context,
        left: left.signal,
        endsWithLock: onLost !== 'report',
        handler: call.observeHandler?.(context),
        give: (value) => subscriber.next(value),
        fail: (error) => subscriber.error(error),
      }).run(call.work);
    })
      .then(
        (insteadOfWork) => {
          for (const value of heldBack) subscriber.next(value);
          if (isObservable(insteadOfWork)) return void subscriber.add(insteadOfWork.subscribe(subscriber));
          if (insteadOfWork !== undefined) subscriber.next(insteadOfWork);
          subscriber.complete();
        },
        (error: unknown) => {
          if (subscriber.closed) logUnheard(call.method, error);
          subscriber.error(error);
        },
      )
      .finally(() => stopListening());
    return () => {
      left.abort(UNSUBSCRIBED);
      unwanted.abort(UNSUBSCRIBED);
    };
  });
}

/** The caller has left, or has heard of something else before. */
function logUnheard(method: string, error: unknown): void {
  if (error === UNSUBSCRIBED || (error instanceof LockNotAcquiredError && error.cause === UNSUBSCRIBED))
    return;
  new Logger(LockService.name).warn(`${method} failed after its caller had left: ${String(error)}`);
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
