import 'reflect-metadata';
import { LockConfigurationError } from '../errors/lock.errors.js';

/** Own to the class that declares the method: an override names its parameters itself. */
const LOCK_PARAMS: unique symbol = Symbol.for('nestjs-redis-lock.params');

/**
 * Names a parameter for the templates of `@WithLock`: `@WithLock('order:<id>') buy(@LockParam('id') orderId: string)`.
 * Comes before all other names, and survives minifiers and decorators that replace the method.
 */
export function LockParam(name: string): ParameterDecorator {
  if (typeof name !== 'string' || name === '' || /[<>{}.]|^\d+$/.test(name)) {
    throw new LockConfigurationError(
      `@LockParam needs a name without '<', '>', '{', '}' and '.', not of digits only; got "${name}"`,
    );
  }
  return (target, propertyKey, index) => {
    if (propertyKey === undefined) {
      throw new LockConfigurationError(`@LockParam('${name}') belongs on a parameter of a method`);
    }
    const names = lockParams(target, propertyKey);
    names[index] = name;
    Reflect.defineMetadata(LOCK_PARAMS, names, target, propertyKey);
  };
}

/** The names that were given, by index. */
export function lockParams(target: object, propertyKey: string | symbol): (string | undefined)[] {
  return [
    ...((Reflect.getOwnMetadata(LOCK_PARAMS, target, propertyKey) as (string | undefined)[] | undefined) ??
      []),
  ];
}
