import { LockConfigurationError } from '../errors/lock.errors.js';
import { checkWithLockOptions } from '../redis-lock.options.js';
import type { WithLockOptions } from '../redis-lock.options.js';

interface DeclaredOptions extends WithLockOptions {
  instance?: string;
  onBusy?: unknown;
  returns?: unknown;
}

/**
 * Options of a decorator or an interceptor, checked when it is declared.
 *
 * @throws LockConfigurationError naming the option
 */
export function checkLockOptions<Options extends DeclaredOptions>(
  options: Options,
  described: string,
): Options {
  if (typeof options !== 'object' || options === null) {
    throw new LockConfigurationError(`${described}: the options must be an object; got ${String(options)}`);
  }
  const { instance, onBusy, returns, ...lockOptions } = options;
  checkWithLockOptions(lockOptions, described);
  const wrong = (name: string, needs: string) =>
    new LockConfigurationError(`Option "${name}" of ${described} must be ${needs}`);
  if (instance !== undefined && (typeof instance !== 'string' || instance === '')) {
    throw wrong('instance', 'a string, not empty');
  }
  if (onBusy !== undefined && onBusy !== 'throw' && onBusy !== 'skip' && typeof onBusy !== 'function') {
    throw wrong('onBusy', "'throw', 'skip' or a function");
  }
  if (returns !== undefined && returns !== 'promise' && returns !== 'observable') {
    throw wrong('returns', "'promise' or 'observable'");
  }
  return options;
}
