import 'reflect-metadata';
import type { Observable } from 'rxjs';
import { compileKey } from '../execution/lock-key.js';
import { checkLockOptions } from '../execution/lock-options.js';
import type { LockKey } from '../execution/lock-key.js';
import { assertLockable, returnsObservable } from '../execution/lockable-method.js';
import { parameterIndex } from '../execution/method-parameters.js';
import { observeLocked, runLocked } from '../execution/run-locked.js';
import type { LockedCall } from '../execution/run-locked.js';
import type { Resource, WithLockOptions } from '../redis-lock.options.js';
import { declareService, serviceOf } from '../execution/instance-binding.js';

export interface WithLockDecoratorOptions<Args extends readonly never[] = never[]> extends WithLockOptions {
  /**
   * What happens when the lock is not to be had: 'throw' the LockNotAcquiredError, 'skip' the call, which then yields
   * undefined (nothing at all, for an Observable), or call a function with the arguments. Default: 'throw'.
   */
  onBusy?: 'throw' | 'skip' | ((...args: Args) => unknown);
  /** Name of the RedisLockModule instance whose locks to use. Default: the one without a name. */
  instance?: string;
  /** What the method returns, where neither its emitted type nor `@Sse` tells. Default: 'promise'. */
  returns?: 'promise' | 'observable';
}

/** A method that can be locked: it takes its time anyway. */
type LockableMethod = (...args: never[]) => Promise<unknown> | Observable<unknown>;

/** Refuses a key function whose parameters the method's arguments do not fit. */
type KeyFits<Key, Method> = Key extends (...args: never[]) => unknown
  ? Method extends (...args: infer Args) => unknown
    ? Key extends (...args: Args) => Resource
      ? unknown
      : { 'the key function does not accept the arguments of the method': never }
    : unknown
  : unknown;

type LockDecorator<Key> = <Method extends LockableMethod>(
  target: object & { prototype?: never }, // a static method has a class here
  propertyKey: string | symbol,
  descriptor: TypedPropertyDescriptor<Method> & KeyFits<Key, Method>,
) => void;

/**
 * Runs the method under a lock, in one of all processes at a time, and commits what it queued on
 * {@link LockContext.multi} only while the lock is held.
 *
 * An Observable is locked from its subscription to its end, and what it queued is committed once, when it completes. A
 * value that its completion follows at once, as the one of a promise, is given out after that commit, so that
 * `firstValueFrom` and `take(1)` have it, or the error of the commit. Values of a stream are given out as they come.
 * Unsubscribing frees the lock: after a value it is a success, and what was queued before that value is committed, with
 * an error only in the log; before any value nothing is. When the Observable fails, nothing is. It does not run again
 * once it has emitted. A stream whose values must not be seen before they are committed awaits
 * {@link LockContext.commit} before it emits.
 *
 * A result that is read later is refused, since it would be read without the lock: a stream, a StreamableFile, a web
 * Response, an async iterable, and a plain object that has one.
 *
 * @param key `'order:<id>'` takes the argument of the parameter `id`, `<dto.customer.id>` a value inside of one,
 * `<0>` the first argument; several templates lock all or none. Or a function of the arguments.
 * @throws LockConfigurationError, when the class is defined, for a placeholder that binds to nothing or an option
 * that is wrong. A call rejects as {@link LockService.withLock} does, with a LockKeyError when a value is missing, and
 * with a LockConfigurationError when the instance has no LockService: it never runs unlocked.
 */
export function WithLock<const Key extends LockKey>(
  key: Key,
  options: WithLockDecoratorOptions = {},
): LockDecorator<Key> {
  return (target, propertyKey, descriptor) => {
    const described = `@WithLock on ${nameOf(target)}.${String(propertyKey)}`;
    const original = assertLockable(descriptor?.value, target, propertyKey, described);
    const { instance, onBusy = 'throw', returns, ...lockOptions } = checkLockOptions(options, described);
    const keyOfCall = compileKey(
      key,
      described,
      (name, position) => position ?? parameterIndex(name, target, propertyKey, original),
    );
    const service = declareService(target, instance);
    const isObservable = returns
      ? returns === 'observable'
      : returnsObservable(original, target, propertyKey);
    const run: (call: LockedCall) => unknown = isObservable ? observeLocked : runLocked;

    const locked = function (this: unknown, ...args: unknown[]): unknown {
      return run({
        service: () => serviceOf(this, service, described),
        method: described,
        resources: () => keyOfCall(args),
        options: lockOptions,
        onBusy,
        args,
        work: () => original.apply(this, args),
      });
    };
    disguise(locked, original);
    descriptor.value = locked as unknown as NonNullable<typeof descriptor.value>;
  };
}

function nameOf(target: object): string {
  return (typeof target === 'function' ? target : target.constructor).name;
}

/** Routes, guards, names of parameters: whatever was put on the method has to be found on its replacement. */
function disguise(replacement: object, original: object): void {
  const { prototype: _prototype, ...properties } = Object.getOwnPropertyDescriptors(original as () => void);
  Object.defineProperties(replacement, properties);
  for (const metadataKey of Reflect.getOwnMetadataKeys(original) as unknown[]) {
    Reflect.defineMetadata(metadataKey, Reflect.getOwnMetadata(metadataKey, original), replacement);
  }
}
