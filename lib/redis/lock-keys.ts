import { createHash } from 'node:crypto';
import { LockConfigurationError } from '../errors/lock.errors.js';
import type { Resource } from '../redis-lock.options.js';

/**
 * The keys of a resource. Their names are part of the contract: operators look at them.
 *
 * A class, as all that lives as long as a lock: once V8 has seen a burst of literals survive, it makes those of that place
 * among old objects from then on, for the life of the process, and they keep alive what they refer to.
 */
export class ResourceKeys {
  /** Hash tag of the keys, which decides about their slot in a cluster. */
  readonly tag: string;
  /** `lock:{R}`: string, the owner's token, with the lease as its PX. */
  readonly owner: string;
  /** `lock:queue:{R}`: sorted set, the waiters' tokens by ticket. */
  readonly queue: string;
  /** `lock:fence:{R}`: hash, the last fencing token and the last commits. */
  readonly fence: string;
  /** `lock:barrier:{R}`: never exists. */
  readonly barrier: string;

  /**
   * @param slot if there is one, that is the hash tag: `lock:{slot}:R`
   * @param name what the keys call the resource
   */
  constructor(
    prefix: string,
    readonly resource: string,
    readonly slot?: string,
    name = shorten(resource),
  ) {
    const tagged = slot === undefined ? `{${name}}` : `{${slot}}:${name}`;
    this.tag = slot ?? name;
    this.owner = `${prefix}:${tagged}`;
    this.queue = `${prefix}:queue:${tagged}`;
    this.fence = `${prefix}:fence:${tagged}`;
    this.barrier = `${prefix}:barrier:${tagged}`;
  }

  /** @returns those with that owner key; undefined where it is none. A name that was shortened stays so. */
  static ofOwner(owner: string): ResourceKeys | undefined {
    const [, prefix, tag = '', name] = /^([^{}]+):\{([^{}]*)\}(?::(.*))?$/s.exec(owner) ?? [];
    if (prefix === undefined || tag === '') return undefined;
    return name === undefined
      ? new ResourceKeys(prefix, tag, undefined, tag)
      : new ResourceKeys(prefix, name, tag, name);
  }
}

/** A token and what it was taken for: all a script needs to know. */
export interface Claim {
  readonly token: string;
  readonly keys: readonly ResourceKeys[];
  /** Holders before it, the latest first, one of which Redis may still take for the owner; with a single resource. */
  readonly predecessors?: readonly string[];
  /** In the order of the keys, once it was granted. */
  readonly fencingTokens?: readonly number[];
}

const MAX_RESOURCE_BYTES = 512;
const READABLE_BYTES = 480;
/** '~' and a SHA-256 in base64url. */
const HASH_BYTES = 44;

/**
 * The resources of a call, sorted and without repetition: everybody takes them in the same order.
 *
 * @throws LockConfigurationError for a name that is no resource.
 */
export function normaliseResources(resource: Resource): readonly string[] {
  const names: readonly unknown[] = Array.isArray(resource) ? resource : [resource];
  if (names.length === 0) throw new LockConfigurationError('A lock needs at least one resource; got none');
  for (const name of names) {
    if (typeof name !== 'string' || name === '' || /[{}]/.test(name) || !name.isWellFormed()) {
      throw new LockConfigurationError(
        `A resource must be a well-formed string without '{' and '}', not empty; got ${typeof name === 'string' ? JSON.stringify(name) : typeof name}`,
      );
    }
  }
  return [...new Set(names as string[])].sort();
}

export function resourcesOf(keys: readonly ResourceKeys[]): string[] {
  return keys.map(({ resource }) => resource);
}

/** Those of the claim and of its predecessors, as scripts want to have them. */
export function tokensOf({ token, predecessors = [] }: Claim): string {
  return predecessors.length === 0 ? token : [token, ...predecessors].join(' ');
}

/** Whether messages to the waiter with that token go to a sharded channel. */
export function isSharded(token: string): boolean {
  return token.includes(':s');
}

/** KEYS of most scripts: owner, queue, fence of one resource after the other. */
export function triples(keys: readonly ResourceKeys[]): string[] {
  const names: string[] = [];
  for (const { owner, queue, fence } of keys) names.push(owner, queue, fence);
  return names;
}

/** The name that keys have for a resource which an operator may have read from them: that is kept as it is. */
export function nameInKeys(resource: string): string {
  const bytes = Buffer.byteLength(resource);
  const isShortened = bytes > MAX_RESOURCE_BYTES && bytes <= READABLE_BYTES + HASH_BYTES;
  return isShortened && /~[\w-]{43}$/.test(resource) ? resource : shorten(resource);
}

/**
 * A name of over 512 bytes becomes its readable start and its hash. The result is itself over 512 bytes, so that
 * no short name can ever equal it.
 */
function shorten(resource: string): string {
  if (resource.length <= MAX_RESOURCE_BYTES / 3) return resource;
  const bytes = Buffer.from(resource);
  if (bytes.length <= MAX_RESOURCE_BYTES) return resource;
  const start = bytes
    .subarray(0, READABLE_BYTES)
    .toString()
    .replace(/\uFFFD$/, '');
  return `${start}~${createHash('sha256').update(bytes).digest('base64url')}`;
}
