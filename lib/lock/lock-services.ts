import { LockConfigurationError } from '../errors/lock.errors.js';
import { LockService } from './lock.service.js';
import type { ResolvedModuleOptions } from '../redis-lock.options.js';
import type { LockScopes } from '../transaction/lock-scopes.js';

/**
 * The lock services of one application, one for each name: a scope joins only locks of its own service, so that with two
 * of them a method would wait for its own caller.
 */
export class LockServices {
  readonly #scopes: LockScopes;
  readonly #known = new Map<string | undefined, { options: ResolvedModuleOptions; service: LockService }>();

  constructor(scopes: LockScopes) {
    this.#scopes = scopes;
  }

  /**
   * The one of that name, made when it is asked for first.
   *
   * @throws LockConfigurationError when it was made with other options
   */
  get(name: string | undefined, options: ResolvedModuleOptions): LockService {
    const known = this.#known.get(name);
    if (known) {
      assertSame(name, known.options, options);
      return known.service;
    }
    const service = LockService.create(options, this.#scopes);
    this.#known.set(name, { options, service });
    return service;
  }
}

function assertSame(
  name: string | undefined,
  first: ResolvedModuleOptions,
  second: ResolvedModuleOptions,
): void {
  const differences = keysOf(first, second)
    .filter((key) => !isSame(first[key], second[key]))
    // Of a connection, and of whatever may have a secret inside, nothing is shown.
    .map((key) =>
      isShown(first[key], second[key], key) ? `"${key}" is ${first[key]} and ${second[key]}` : `"${key}"`,
    );
  if (differences.length === 0) return;
  const which = name === undefined ? 'without a name' : `with the name "${name}"`;
  throw new LockConfigurationError(
    `RedisLockModule is set up twice ${which}, with different options: ${differences.join(', ')}. There is one service ` +
      'for each name in an application: set it up once in the root module, or give one of them a `name`. ' +
      'Clients and functions among the options are the same only when they are the same object',
  );
}

function isShown(a: unknown, b: unknown, key: string): boolean {
  return key !== 'connection' && [a, b].every((value) => ['number', 'boolean'].includes(typeof value));
}

/** Plain objects and arrays by what they have; anything else, a client or a function, has to be the same. */
function isSame(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true;
  if (Buffer.isBuffer(a) && Buffer.isBuffer(b)) return a.equals(b);
  if (!isPlain(a) || !isPlain(b) || Array.isArray(a) !== Array.isArray(b)) return false;
  return keysOf(a, b).every((key) => isSame(a[key], b[key]));
}

function isPlain(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === Array.prototype || prototype === null;
}

function keysOf<Type extends object>(a: Type, b: Type): (keyof Type & string)[] {
  return [...new Set([...Object.keys(a), ...Object.keys(b)])] as (keyof Type & string)[];
}
