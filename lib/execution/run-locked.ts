import { LockConfigurationError } from '../errors/lock.errors.js';
import type { LockService } from '../lock/lock.service.js';
import type { Resource, WithLockOptions } from '../redis-lock.options.js';

/** One call of a method that is to run under a lock. */
export interface LockedCall {
  /** Undefined where Nest did not make the instance. */
  readonly service: LockService | undefined;
  /** For messages. */
  readonly method: string;
  readonly resources: () => Resource;
  readonly options: WithLockOptions;
  readonly work: () => unknown;
}

/** Key, lock, work, commit. Everything that goes wrong is a rejection; without a lock the work does not run. */
export async function runLocked({ service, method, resources, options, work }: LockedCall): Promise<unknown> {
  if (service === undefined) {
    throw new LockConfigurationError(
      `${method}: this instance has no LockService. Nest injects it into what it makes itself; ` +
        'an instance made by hand needs `locks.withLock(..)`',
    );
  }
  return service.withLock(resources(), options, work);
}
