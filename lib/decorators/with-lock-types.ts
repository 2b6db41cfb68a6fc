import type { Observable } from 'rxjs';
import type { LockKey } from '../execution/lock-key.js';
import type { WithLockOptions } from '../redis-lock.options.js';

/** A method that can be locked: it takes its time anyway. */
export type LockableMethod = (...args: never[]) => Promise<unknown> | Observable<unknown>;

/** What a method of that type can be locked by; its own parameters are those of a key function. */
export type LockKeyOf<Method extends LockableMethod> = LockKey<Parameters<Method>>;

/** What can happen when a method of that type does not get its lock. */
export type OnBusyOf<Method extends LockableMethod> =
  'throw' | 'skip' | ((...args: Parameters<Method>) => Instead<ReturnType<Method>>);

/** What stands in for a result: the same, or a promise of it; for an Observable also a single value, or none. */
type Instead<Result> =
  Result extends Promise<infer Value>
    ? [Value] extends [void]
      ? unknown // nobody looks at it
      : Value | PromiseLike<Value>
    : Result extends Observable<infer Value>
      ? InsteadOfStream<Value> | PromiseLike<InsteadOfStream<Value>>
      : never;
type InsteadOfStream<Value> = Value | Observable<Value> | undefined | void;

export interface WithLockDecoratorOptions<OnBusy = OnBusyOf<LockableMethod>> extends WithLockOptions {
  /**
   * What happens when the lock is not to be had: 'throw' the LockNotAcquiredError, 'skip' the call, which then yields
   * undefined (nothing at all, for an Observable), or call a function with the arguments, whose result is the call's.
   * What the call then yields has to be part of the method's type: `Promise<Report | undefined>` for 'skip'.
   * Default: 'throw'.
   */
  onBusy?: OnBusy;
  /** Name of the RedisLockModule instance whose locks to use. Default: the one without a name. */
  instance?: string;
  /** What the method returns, where neither its emitted type nor `@Sse` tells. Default: 'promise'. */
  returns?: 'promise' | 'observable';
}

/**
 * Where it stands above a method, TypeScript tells its type, and with it what the parameters of a key function and of
 * onBusy are. Anywhere else it is a decorator of any method that both of them fit.
 */
export type LockDecorator<Method extends LockableMethod, Key, OnBusy> = LockableMethod extends Method
  ? <Each extends LockableMethod>(
      target: Instance,
      propertyKey: string | symbol,
      descriptor: Lockable<Each, Key, OnBusy>,
    ) => void
  : (target: Instance, propertyKey: string | symbol, descriptor: Lockable<Method, Key, OnBusy>) => void;

/** What a static method has is a class. */
type Instance = object & { prototype?: never };

type Lockable<Method extends LockableMethod, Key, OnBusy> = TypedPropertyDescriptor<Method> &
  KeyFits<Key, Method> &
  OnBusyFits<OnBusy, Method>;

type FunctionIn<Type> = Extract<Type, (...args: never[]) => unknown>;

type KeyFits<Key, Method extends LockableMethod> = [FunctionIn<Key>] extends [LockKeyOf<Method>]
  ? unknown
  : { 'the key function does not accept the arguments of the method': never };

/** Says nothing about an onBusy that could be anything: none was given, or TypeScript does not know which one. */
type OnBusyFits<OnBusy, Method extends LockableMethod> = [OnBusyOf<Method>] extends [OnBusy]
  ? unknown
  : SkipFits<OnBusy, ReturnType<Method>> &
      ([FunctionIn<OnBusy>] extends [OnBusyOf<Method>]
        ? unknown
        : { "onBusy does not accept the arguments of the method, or its result is not the method's": never });

type SkipFits<OnBusy, Result> = 'skip' extends OnBusy
  ? [undefined] extends [Result extends Promise<infer Value> ? Value : undefined]
    ? unknown
    : {
        "onBusy: 'skip' yields undefined, and the type of the method has to say so: Promise<.. | undefined>": never;
      }
  : unknown;
