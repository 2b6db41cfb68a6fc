import { checkWithLockOptions } from '../redis-lock.options.js';
import type { Checks, WithLockOptions } from '../redis-lock.options.js';

/** What an interceptor can be given besides the options of withLock. */
export const INTERCEPTOR_OPTIONS = {
  onBusy: (value) =>
    value === 'throw' || value === 'skip' || typeof value === 'function'
      ? undefined
      : "'throw', 'skip' or a function",
  instance: (value) => (typeof value === 'string' && value !== '' ? undefined : 'a string, not empty'),
} as const satisfies Checks;

/** The same for the decorator. */
export const DECORATOR_OPTIONS = {
  ...INTERCEPTOR_OPTIONS,
  returns: (value) =>
    value === 'promise' || value === 'observable' ? undefined : "'promise' or 'observable'",
} as const satisfies Checks;

/**
 * Options of a decorator or an interceptor, checked when it is declared.
 *
 * @throws LockConfigurationError naming the option
 */
export function checkLockOptions<Options extends WithLockOptions>(
  options: Options,
  described: string,
  own: Checks,
): Options {
  checkWithLockOptions(options, described, own);
  return options;
}
