import 'reflect-metadata';
import { Inject } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { getLockServiceToken } from '../decorators/inject-lock-service.js';
import type { LockService } from '../lock/lock.service.js';

/** Properties through which the locked methods of a class find their lock services, by the service's name. */
const SERVICES: unique symbol = Symbol.for('nestjs-redis-lock.services');

type Services = ReadonlyMap<string | undefined, symbol>;

/**
 * Has Nest inject the lock service into the instances of a class, whatever their scope. Nest shows the property's name
 * when there is none to inject: it has to read as a hint.
 *
 * @returns the property
 */
export function declareService(prototype: object, name: string | undefined): symbol {
  const declared = servicesOf(prototype.constructor);
  const known = declared.get(name);
  if (known !== undefined) return known;
  const named = name === undefined ? '' : ` with the name ${name}`;
  const property = Symbol(`LockService, is RedisLockModule${named} imported?`);
  Inject(getLockServiceToken(name))(prototype, property);
  Reflect.defineMetadata(SERVICES, new Map([...declared, [name, property]]), prototype.constructor);
  return property;
}

/**
 * Gives the lock service to instances that Nest did not make, and therefore injected nothing into: those of `useValue`
 * and `useFactory`. One that is made later, for a request for example, cannot be reached; its locked methods throw.
 */
export function bindInstances(
  modules: ModulesContainer,
  name: string | undefined,
  service: LockService,
): void {
  for (const module of modules.values()) {
    for (const { instance, isNotMetatype } of module.providers.values()) {
      if (!isNotMetatype || typeof instance !== 'object' || instance === null) continue;
      const property = servicesOf((instance as object).constructor).get(name);
      if (property === undefined || property in instance) continue;
      Object.defineProperty(instance, property, { value: service });
    }
  }
}

/** Also those that were declared by a class above. */
function servicesOf(type: unknown): Services {
  if (typeof type !== 'function') return new Map();
  return (Reflect.getMetadata(SERVICES, type) as Services | undefined) ?? new Map();
}
