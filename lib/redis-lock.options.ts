import type { Cluster, ClusterNode, ClusterOptions, Redis, RedisOptions } from 'ioredis';
import { LockConfigurationError } from './errors/lock.errors.js';
import { wrongAddress } from './redis/connection-address.js';
import type { RedisCredentials } from './redis/credentials.js';
import { MAX_TIMER_DELAY } from './redis/deadline.js';

/** Several resources are locked all or none. A name is not empty and has neither '{' nor '}'. */
export type Resource = string | readonly string[];

/** A Redis Cluster to connect to. */
export interface ClusterConnection {
  nodes: ClusterNode[];
  options?: ClusterOptions;
}

export interface RedisLockModuleOptions {
  /**
   * Where Redis is: a URL (`redis://`, `rediss://`, or the absolute path of a socket), ioredis' options, cluster nodes, or a
   * client of your own. A client is borrowed: never closed, never reconfigured. Connections made from it stay in the
   * database that it had selected when the service was made, and authenticate by the `username` and `password` that its
   * options have when they connect. One that reads from replicas is refused. Default: `redis://localhost:6379`.
   */
  connection?: string | RedisOptions | ClusterConnection | Redis | Cluster;
  /**
   * Answers what to authenticate with, for passwords that change: called before each attempt to connect, and has to end
   * within half of commandTimeout. When it throws or does not end, calls reject with a LockUnavailableError that has the
   * reason as its `cause`. Not with a client of your own. Default: what `connection` says.
   */
  credentials?: () => RedisCredentials | Promise<RedisCredentials>;
  /** First part of every key. Default: `lock`. */
  keyPrefix?: string;
  /** ms a lease lasts without renewal, an integer of at least 10. Default: 10 000. */
  ttl?: number;
  /** ms to wait for a busy lock; 0 gives up at once, Infinity waits until aborted. Default: 0. */
  wait?: number;
  /** Renew the lease while the work runs. Default: true. */
  autoExtend?: boolean;
  /** ms after which renewal stops. Default: Infinity. */
  maxHold?: number;
  /** Waiters per resource, of all processes, before new ones are refused. Default: Infinity. */
  maxWaiters?: number;
  /**
   * Replicas that must confirm an acquire before it counts, see Redis' WAIT. A lock then survives a failover to one of
   * them; when too few answer within half of commandTimeout, it is not to be had. Default: 0.
   */
  replicas?: number;
  /** ms any one Redis round trip may take, 2 147 483 647 at most. Default: 2 000. */
  commandTimeout?: number;
  /** ms that app.close() waits for work under locks. Default: 10 000. */
  shutdownTimeout?: number;
  /** Registers LockExceptionFilter, which adds Retry-After to HTTP answers. Default: true. */
  httpErrors?: boolean;
}

/** Implemented by a class given to `forRootAsync` as `useClass` or `useExisting`. */
export interface RedisLockOptionsFactory {
  createRedisLockOptions(): RedisLockModuleOptions | Promise<RedisLockModuleOptions>;
}

export interface AcquireOptions {
  /** ms, see {@link RedisLockModuleOptions.ttl}. */
  ttl?: number;
  /** ms, see {@link RedisLockModuleOptions.wait}. */
  wait?: number;
  autoExtend?: boolean;
  /** ms, see {@link RedisLockModuleOptions.maxHold}. */
  maxHold?: number;
  /** ms: released no sooner than this after acquisition, without keeping the caller. Default: 0. */
  minHold?: number;
  /** Hash tag to use instead of the resource, so that several locks share a cluster slot. */
  slot?: string;
  /** Stops waiting. */
  signal?: AbortSignal;
}

export interface WithLockOptions extends AcquireOptions {
  /** Default: true. false: no `multi`, nothing is committed. */
  transaction?: boolean;
  /** Reruns of the work when its commit was refused and nothing was applied. Default: 3. */
  retries?: number;
  /** What happens to work that ended well but lost its lock, with nothing to commit. Default: 'throw'. */
  onLost?: 'throw' | 'report';
}

/** Module options with every default filled in. */
export type ResolvedModuleOptions = Required<Omit<RedisLockModuleOptions, 'credentials'>> &
  Pick<RedisLockModuleOptions, 'credentials'>;

const DEFAULTS: ResolvedModuleOptions = {
  connection: 'redis://localhost:6379',
  keyPrefix: 'lock',
  ttl: 10_000,
  wait: 0,
  autoExtend: true,
  maxHold: Infinity,
  maxWaiters: Infinity,
  replicas: 0,
  commandTimeout: 2_000,
  shutdownTimeout: 10_000,
  httpErrors: true,
};

/** A check answers with what the value has to be, or with nothing when it is. */
type Check = (value: unknown) => string | undefined;

/** By the name of the option. */
export type Checks = Readonly<Record<string, Check>>;

/** ms. */
export const LONGEST_TTL = 365 * 24 * 3_600_000;

function number(needs: string, holds: (value: number) => boolean): Check {
  return (value) => (typeof value === 'number' && holds(value) ? undefined : needs);
}
const milliseconds = number('a finite number of ms, 0 or more', (value) => value >= 0 && value < Infinity);
const unboundedMilliseconds = number('a number of ms, 0 or more, or Infinity', (value) => value >= 0);
const count = number('an integer, 0 or more', (value) => Number.isSafeInteger(value) && value >= 0);
const boolean: Check = (value) => (typeof value === 'boolean' ? undefined : 'a boolean');
const tag: Check = (value) =>
  typeof value === 'string' && value !== '' && !/[{}]/.test(value)
    ? undefined
    : "a string without '{' and '}', not empty";
const connection: Check = (value) =>
  typeof value === 'string' || (typeof value === 'object' && value !== null && !Array.isArray(value))
    ? wrongAddress(value)
    : 'a URL, options of ioredis, { nodes }, or a client of ioredis';

const ACQUIRE_CHECKS: Record<keyof AcquireOptions, Check> = {
  ttl: number(
    `an integer of ms from 10 to ${LONGEST_TTL}`,
    (value) => Number.isSafeInteger(value) && value >= 10 && value <= LONGEST_TTL,
  ),
  wait: unboundedMilliseconds,
  autoExtend: boolean,
  maxHold: unboundedMilliseconds,
  minHold: milliseconds,
  slot: tag,
  signal: (value) =>
    typeof value === 'object' && value !== null && 'aborted' in value && 'addEventListener' in value
      ? undefined
      : 'an AbortSignal',
};

const WITH_LOCK_CHECKS: Record<keyof WithLockOptions, Check> = {
  ...ACQUIRE_CHECKS,
  transaction: boolean,
  retries: count,
  onLost: (value) => (value === 'throw' || value === 'report' ? undefined : "'throw' or 'report'"),
};

const MODULE_CHECKS: Record<keyof RedisLockModuleOptions, Check> = {
  connection,
  credentials: (value) =>
    typeof value === 'function' ? undefined : 'a function that answers { username?, password? }',
  keyPrefix: tag,
  ttl: ACQUIRE_CHECKS.ttl,
  wait: ACQUIRE_CHECKS.wait,
  autoExtend: boolean,
  maxHold: ACQUIRE_CHECKS.maxHold,
  maxWaiters: number('a number of waiters, 0 or more, or Infinity', (value) => value >= 0),
  replicas: count,
  commandTimeout: number(
    `a number of ms above 0, ${MAX_TIMER_DELAY} at most`, // the longest delay of a timer
    (value) => value > 0 && value <= MAX_TIMER_DELAY,
  ),
  shutdownTimeout: milliseconds,
  httpErrors: boolean,
};

/**
 * Checks the options of `forRoot` and fills in the defaults.
 *
 * @throws LockConfigurationError naming the option.
 */
export function resolveModuleOptions(options: RedisLockModuleOptions): ResolvedModuleOptions {
  check('RedisLockModule', MODULE_CHECKS, options);
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return { ...DEFAULTS, ...(Object.fromEntries(given) as RedisLockModuleOptions) };
}

/** @throws LockConfigurationError naming the option. */
export function checkAcquireOptions(options: AcquireOptions | undefined, of = 'acquire'): void {
  if (options !== undefined) check(of, ACQUIRE_CHECKS, options);
}

/**
 * @param also options there are besides
 * @throws LockConfigurationError naming the option.
 */
export function checkWithLockOptions(
  options: WithLockOptions | undefined,
  of = 'withLock',
  also?: Checks,
): void {
  if (options !== undefined) check(of, also ? { ...WITH_LOCK_CHECKS, ...also } : WITH_LOCK_CHECKS, options);
}

/** @throws LockConfigurationError naming the option. */
export function checkSlotOption(options: Pick<AcquireOptions, 'slot'>, of: string): void {
  check(of, { slot: ACQUIRE_CHECKS.slot }, options);
}

/** An option left `undefined` counts as not given; a name nobody knows is most likely a misspelt one. */
function check(of: string, checks: Checks, options: object): void {
  if (typeof options !== 'object' || options === null) {
    throw new LockConfigurationError(`The options of ${of} must be an object; got ${kindOf(options)}`);
  }
  for (const name in options) {
    const value = (options as Readonly<Record<string, unknown>>)[name];
    if (value === undefined || !Object.hasOwn(options, name)) continue;
    if (!Object.hasOwn(checks, name)) {
      const known = Object.keys(checks).join(', ');
      throw new LockConfigurationError(`Option "${name}" of ${of} is not known; there are ${known}`);
    }
    const needs = checks[name]?.(value);
    if (needs !== undefined) {
      // They may hold a password: nothing of them is shown.
      const got = name === 'connection' || name === 'credentials' ? '' : `; got ${show(value)}`;
      throw new LockConfigurationError(`Option "${name}" of ${of} must be ${needs}${got}`);
    }
  }
}

/** Without what it says: a URL may hold a password. */
function kindOf(value: unknown): string {
  return value === null ? 'null' : typeof value;
}

function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value);
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' && value !== null ? 'an object' : String(value);
}
