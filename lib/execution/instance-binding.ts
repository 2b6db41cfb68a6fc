import 'reflect-metadata';
import { Inject } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { getLockServiceToken } from '../decorators/inject-lock-service.js';
import type { LockService } from '../lock/lock.service.js';

/** Properties through which the locked methods of a class find their lock services, by the service's name. */
const SERVICES: unique symbol = Symbol.for('nestjs-redis-lock.services');

/** The services that an instance which Nest did not make was given, of all applications that it is in. */
const CANDIDATES: unique symbol = Symbol('nestjs-redis-lock.candidates');

type Services = ReadonlyMap<string | undefined, symbol>;

/**
 * Has Nest inject the lock service into the instances of a class, whatever their scope. Nest shows the property's name
 * when there is none to inject: it has to read as a hint. A second copy of this package has a LockService of its own, which
 * RedisLockModule of the first one does not provide.
 *
 * @returns the property
 */
export function declareService(prototype: object, name: string | undefined): symbol {
  const declared = servicesOf(prototype.constructor);
  const known = declared.get(name);
  if (known !== undefined) return known;
  const named = name === undefined ? '' : ` with the name ${name}`;
  const property = Symbol(
    `LockService, is RedisLockModule${named} imported? ` +
      "If it is, there are two copies of this package: 'npm ls nestjs-redis-lock' shows them",
  );
  Inject(getLockServiceToken(name))(prototype, property);
  Reflect.defineMetadata(SERVICES, new Map([...declared, [name, property]]), prototype.constructor);
  return property;
}

/**
 * Gives the lock service to instances that Nest did not make, and therefore injected nothing into: those of `useValue`
 * and `useFactory`, in the modules that can see the lock module. One that is made later, for a request for example, or
 * that is frozen, cannot be reached; its locked methods throw.
 */
export function bindInstances(
  modules: ModulesContainer,
  lockModule: object,
  name: string | undefined,
  service: LockService,
): void {
  const own = [...modules.values()].find(({ instance }) => instance === lockModule);
  for (const module of modules.values()) {
    if (!own || !sees(module, own)) continue;
    for (const { instance, isNotMetatype } of module.providers.values()) {
      if (!isNotMetatype || typeof instance !== 'object' || instance === null) continue;
      const property = servicesOf((instance as object).constructor).get(name);
      if (property !== undefined) bind(instance, property, service, own.isGlobal);
    }
  }
}

type ModuleOfNest = ModulesContainer extends Map<string, infer Module> ? Module : never;

/** By importing it, or a module that exports it. Nest imports a global one everywhere. */
function sees(module: ModuleOfNest, own: ModuleOfNest): boolean {
  const provides = (each: ModuleOfNest): boolean =>
    each === own || (each.exports.has(own.metatype) && [...each.imports].some(provides));
  return module === own || [...module.imports].some(provides);
}

/**
 * An instance may be in several applications, at once or one after the other: it has the first service that is not
 * closed, one that its module imports before a global one.
 */
function bind(instance: object, property: symbol, service: LockService, isGlobal: boolean): void {
  const known = (instance as Record<symbol, LockService[] | undefined>)[CANDIDATES];
  if (known) return void (isGlobal ? known.push(service) : known.unshift(service));
  if (property in instance || !Object.isExtensible(instance)) return;
  const candidates = [service];
  Object.defineProperty(instance, CANDIDATES, { value: candidates });
  const firstOpen = () => candidates.find(({ isClosed }) => !isClosed) ?? candidates.at(-1);
  Object.defineProperty(instance, property, { get: firstOpen });
}

/** Also those that were declared by a class above. */
function servicesOf(type: unknown): Services {
  if (typeof type !== 'function') return new Map();
  return (Reflect.getMetadata(SERVICES, type) as Services | undefined) ?? new Map();
}
