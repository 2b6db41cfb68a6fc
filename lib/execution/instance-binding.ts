import 'reflect-metadata';
import { Inject } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { getLockServiceToken } from '../decorators/inject-lock-service.js';
import { LockConfigurationError, LockNotAcquiredError } from '../errors/lock.errors.js';
import type { LockService } from '../lock/lock.service.js';

/** Properties through which the locked methods of a class find their lock services, by the service's name. */
const SERVICES: unique symbol = Symbol.for('nestjs-redis-lock.services');

/** What an instance that Nest did not make was given, by the property that has it. */
const BINDINGS: unique symbol = Symbol('nestjs-redis-lock.bindings');

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
 * The lock service of an instance.
 *
 * @throws LockConfigurationError when it has none, LockNotAcquiredError when its application has closed
 */
export function serviceOf(instance: unknown, property: symbol, method: string): LockService {
  if (typeof instance !== 'object' || instance === null) {
    throw new LockConfigurationError(
      `${method}: it was called without its instance: \`this\` is ${String(instance)}`,
    );
  }
  const service = (instance as Record<symbol, LockService | undefined>)[property];
  if (service !== undefined) return service;
  if (property in instance) throw new LockNotAcquiredError('shutdown');
  throw new LockConfigurationError(
    `${method}: this instance has no LockService. Nest injects it into what it makes of a class, and RedisLockModule ` +
      'gives it, at start-up, to what useValue and useFactory provide in a module that sees it. Neither reaches an ' +
      'instance that is made by hand or frozen, nor one of a useFactory that runs later: in REQUEST or TRANSIENT scope, ' +
      'or in a module that is loaded lazily. Provide it by useClass, have the factory return ' +
      '`moduleRef.create(TheClass)`, or call `locks.withLock(..)`',
  );
}

/**
 * Gives the lock service to instances that Nest did not make, and therefore injected nothing into: those of `useValue`
 * and `useFactory`, in the modules that can see the lock module.
 *
 * @returns takes it away again: such an instance may live longer than the application
 */
export function bindInstances(
  modules: ModulesContainer,
  lockModule: object,
  name: string | undefined,
  service: LockService,
): () => void {
  const own = [...modules.values()].find(({ instance }) => instance === lockModule);
  const bindings = new Set<Binding>();
  for (const module of modules.values()) {
    if (!own || !sees(module, own)) continue;
    for (const { instance, isNotMetatype } of module.providers.values()) {
      if (!isNotMetatype || typeof instance !== 'object' || instance === null) continue;
      const binding = bindingOf(instance as object, name);
      binding?.add(service, own.isGlobal);
      if (binding) bindings.add(binding);
    }
  }
  return () => bindings.forEach((binding) => binding.delete(service));
}

type ModuleOfNest = ModulesContainer extends Map<string, infer Module> ? Module : never;

/** By importing it, or a module that exports it. Nest imports a global one everywhere. */
function sees(module: ModuleOfNest, own: ModuleOfNest): boolean {
  const provides = (each: ModuleOfNest): boolean =>
    each === own || (each.exports.has(own.metatype) && [...each.imports].some(provides));
  return module === own || [...module.imports].some(provides);
}

/**
 * An instance may be in several applications, at once or one after the other: it has the first service, one that its
 * module imports before a global one.
 */
class Binding {
  #services: readonly LockService[] = [];

  /** None when all of its applications have closed. */
  get service(): LockService | undefined {
    return this.#services[0];
  }

  add(service: LockService, isGlobal: boolean): void {
    if (this.#services.includes(service)) return;
    this.#services = isGlobal ? [...this.#services, service] : [service, ...this.#services];
  }

  delete(service: LockService): void {
    this.#services = this.#services.filter((each) => each !== service);
  }
}

/** @returns undefined for an instance that has no locked method with that service, or cannot be given it */
function bindingOf(instance: object, name: string | undefined): Binding | undefined {
  try {
    const property = servicesOf((Object.getPrototypeOf(instance) as object | null)?.constructor).get(name);
    if (property === undefined) return undefined;
    const bindings = Object.getOwnPropertyDescriptor(instance, BINDINGS)?.value as
      Map<symbol, Binding> | undefined;
    const known = bindings?.get(property);
    if (known) return known;
    if (property in instance || !Object.isExtensible(instance)) return undefined;
    const binding = new Binding();
    Object.defineProperty(instance, property, { get: () => binding.service });
    if (bindings) bindings.set(property, binding);
    else Object.defineProperty(instance, BINDINGS, { value: new Map([[property, binding]]) });
    return binding;
  } catch {
    return undefined; // a Proxy may throw whatever it is asked; if it has a locked method, a call of that says so
  }
}

/** Also those that were declared by a class above. */
function servicesOf(type: unknown): Services {
  if (typeof type !== 'function') return new Map();
  return (Reflect.getMetadata(SERVICES, type) as Services | undefined) ?? new Map();
}
