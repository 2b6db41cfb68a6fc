import { Inject } from '@nestjs/common';
import type { InjectionToken } from '@nestjs/common';
import { LockService } from '../lock/lock.service.js';

/** What to inject for the lock service of that `name`; without one, LockService itself. */
export function getLockServiceToken(name?: string): InjectionToken<LockService> {
  return name === undefined ? LockService : `LockService(${name})`;
}

/** Injects the lock service that was set up under `name`: `@InjectLockService('billing') locks: LockService`. */
export function InjectLockService(name?: string): PropertyDecorator & ParameterDecorator {
  return Inject(getLockServiceToken(name));
}
