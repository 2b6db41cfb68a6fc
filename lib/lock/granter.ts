import { LockNotAcquiredError, LockUnavailableError } from '../errors/lock.errors.js';
import type { AcquireOptions, ResolvedModuleOptions } from '../redis-lock.options.js';
import { resourcesOf } from '../redis/lock-keys.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import type { LockStore } from '../redis/lock-store.js';
import { PROVISIONAL_TTL } from '../redis/script-parts.js';
import type { Acquirer } from './acquirer.js';
import { Grant } from './grant.js';
import { InFlight } from './in-flight.js';
import { Lease } from './lease.js';
import type { LeaseKeeper } from './lease-keeper.js';
import type { Succession } from './succession.js';

interface GranterParts {
  readonly store: LockStore;
  readonly keeper: LeaseKeeper;
  readonly acquirer: Acquirer;
  readonly succession: Succession;
  /** Whether the caller runs under a lock, and needs more to end. */
  readonly isNested: () => boolean;
}

/** Turns what somebody wants into a lock that is kept, or says why there is none. */
export class Granter {
  readonly #options: ResolvedModuleOptions;
  readonly #parts: GranterParts;
  readonly #underWay = new InFlight();
  #refused: 'nothing' | 'outside of scopes' | 'everything' = 'nothing';

  constructor(options: ResolvedModuleOptions, parts: GranterParts) {
    this.#options = options;
    this.#parts = parts;
  }

  /** From here on; what is granted meanwhile is given back. It never becomes less. */
  refuse(what: 'outside of scopes' | 'everything'): void {
    if (this.#refused !== 'everything') this.#refused = what;
  }

  /** Resolves when no request is under way any more. */
  drained(): Promise<void> {
    return this.#underWay.drained();
  }

  /**
   * All of the resources or none.
   *
   * @throws LockNotAcquiredError, LockUnavailableError
   */
  async grant(keys: readonly ResourceKeys[], options: AcquireOptions = {}): Promise<Grant> {
    const { store, keeper, acquirer, succession } = this.#parts;
    const { signal, minHold = 0 } = options;
    const nested = this.#parts.isNested();
    this.#assertWanted(keys, signal, nested);
    const ttl = options.ttl ?? this.#options.ttl;
    const wait = options.wait ?? this.#options.wait;
    const autoExtend = options.autoExtend ?? this.#options.autoExtend;
    const maxHold = options.maxHold ?? this.#options.maxHold;
    const { maxWaiters } = this.#options;
    const until = performance.now() + wait;
    const isRenewed = autoExtend && maxHold >= PROVISIONAL_TTL;
    const patience = { until, maxWaiters, signal, nested, isPart: false, isRenewed };
    const asked = acquirer.begin(keys, ttl, wait > 0);
    let claim = asked;
    this.#underWay.begin();
    try {
      const granted = await acquirer.acquire(asked, ttl, wait > 0 ? patience : undefined);
      const { fencingTokens, acquired, inheritance } = granted;
      ({ claim } = granted);
      const terms = { acquired, ttl, autoExtend, maxHold, minHold, inheritance };
      const lease = new Lease(claim.token, keys, fencingTokens, terms);
      try {
        this.#assertWanted(keys, signal, nested);
        if (lease.remaining <= 0) {
          throw new LockUnavailableError(`The lease of ${ttl} ms was over before Redis' answer was there`, {
            resources: resourcesOf(keys),
          });
        }
      } catch (error) {
        store.giveBack(lease, ttl);
        throw error;
      }
      keeper.keep(lease);
      if (inheritance?.passedOn) void succession.follow(lease, inheritance.passedOn);
      return new Grant(lease, keeper);
    } finally {
      acquirer.end(asked);
      acquirer.end(claim);
      this.#underWay.end();
    }
  }

  /** @throws LockNotAcquiredError when the application closes, or the caller has aborted */
  #assertWanted(keys: readonly ResourceKeys[], signal: AbortSignal | undefined, nested: boolean): void {
    if (this.#refused === 'everything' || (this.#refused === 'outside of scopes' && !nested)) {
      throw new LockNotAcquiredError('shutdown', { resources: resourcesOf(keys) });
    }
    if (signal?.aborted) {
      throw new LockNotAcquiredError('aborted', { resources: resourcesOf(keys), cause: signal.reason });
    }
  }
}
