import 'reflect-metadata';
import { LockConfigurationError } from '../errors/lock.errors.js';

type Method = (...args: unknown[]) => unknown;

/** What Nest's `@Sse` leaves on a method. */
const NEST_SSE = '__sse__';
const PRIMITIVES: readonly unknown[] = [String, Number, Boolean, BigInt, Symbol];

/**
 * A method that can run under a lock.
 *
 * @throws LockConfigurationError for everything else that can be told when the class is defined
 */
export function assertLockable(
  value: unknown,
  target: object,
  key: string | symbol,
  described: string,
): Method {
  if (typeof key === 'object') {
    throw new LockConfigurationError(`${described}: set experimentalDecorators, as Nest needs it`);
  }
  if (typeof value !== 'function' || typeof target === 'function') {
    throw new LockConfigurationError(`${described}: only a method of an instance can be locked`);
  }
  if (/Generator/.test(Object.prototype.toString.call(value))) {
    throw new LockConfigurationError(
      `${described}: a generator cannot be locked; return a Promise or an Observable`,
    );
  }
  const returnType = returnTypeOf(target, key);
  if (PRIMITIVES.includes(returnType)) {
    throw new LockConfigurationError(
      `${described}: it returns a ${(returnType as { name: string }).name}, and has to return a Promise or an Observable`,
    );
  }
  return value as Method;
}

/** Told by the type that TypeScript emits, or by `@Sse` below. An Observable of another copy of rxjs is one, too. */
export function returnsObservable(method: Method, target: object, key: string | symbol): boolean {
  // By its shape: a Subject is one, and minifiers rename classes.
  const { prototype } = (returnTypeOf(target, key) ?? {}) as {
    prototype?: { subscribe?: unknown; pipe?: unknown };
  };
  if (typeof prototype?.subscribe === 'function' && typeof prototype.pipe === 'function') return true;
  return Reflect.getMetadata(NEST_SSE, method) === true;
}

function returnTypeOf(target: object, key: string | symbol): unknown {
  return Reflect.getOwnMetadata('design:returntype', target, key);
}
