import 'reflect-metadata';
import { compileKey } from '../execution/lock-key.js';
import { DECORATOR_OPTIONS, checkLockOptions } from '../execution/lock-options.js';
import type { LockKey } from '../execution/lock-key.js';
import { assertLockable, returnsObservable } from '../execution/lockable-method.js';
import { parameterAt, parameterIndex } from '../execution/method-parameters.js';
import { observeLocked, runLocked } from '../execution/run-locked.js';
import type { LockedCall } from '../execution/run-locked.js';
import { declareService, serviceOf } from '../execution/instance-binding.js';
import type {
  LockDecorator,
  LockKeyOf,
  LockableMethod,
  OnBusyOf,
  WithLockDecoratorOptions,
} from './with-lock-types.js';

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
 * `<0>` the first argument; several templates lock all or none. Or a function of the arguments. A name of one or two
 * letters has to be given by `@LockParam` or a decorator of Nest: in the source a minifier may have put it elsewhere.
 * @throws LockConfigurationError, when the class is defined, for a placeholder that binds to nothing or an option
 * that is wrong. A call rejects as {@link LockService.withLock} does, with a LockKeyError when a value is missing, and
 * with a LockConfigurationError when the instance has no LockService: it never runs unlocked.
 */
export function WithLock<
  Method extends LockableMethod,
  const Key extends LockKeyOf<Method>,
  const OnBusy extends OnBusyOf<Method>,
>(key: Key, options: WithLockDecoratorOptions<OnBusy> = {}): LockDecorator<Method, Key, OnBusy> {
  return ((
    target: object,
    propertyKey: string | symbol,
    descriptor: TypedPropertyDescriptor<LockableMethod>,
  ) => {
    const described = `@WithLock on ${nameOf(target)}.${String(propertyKey)}`;
    const original = assertLockable(descriptor?.value, target, propertyKey, described);
    const {
      instance,
      onBusy = 'throw',
      returns,
      ...lockOptions
    } = checkLockOptions(options, described, DECORATOR_OPTIONS);
    const keyOfCall = compileKey(key as LockKey, described, (name, position) =>
      position === undefined
        ? parameterIndex(name, target, propertyKey, original)
        : parameterAt(position, target, propertyKey, original),
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
    descriptor.value = locked as LockableMethod;
  }) as LockDecorator<Method, Key, OnBusy>;
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
