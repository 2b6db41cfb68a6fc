import { LockUnavailableError } from '../errors/lock.errors.js';
import type { RedisClient } from './connections.js';
import { pause, within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { ACQUIRE, BURN, RELEASE, RENEW } from './lock-scripts.js';
import type { Script } from './lock-scripts.js';

/** A token and what it was taken for: all a script needs to know. */
export interface Claim {
  readonly token: string;
  readonly keys: readonly ResourceKeys[];
}

export type AcquireReply =
  | { readonly granted: true; readonly fencingTokens: readonly number[] }
  /** `retryAfter`: ms the holder's lease has left, where it has an end. */
  | { readonly granted: false; readonly retryAfter: number | undefined };

/** What a release came to; 'unclear': it may have been ours, and released by the same request sent twice. */
export type Release = 'released' | 'not ours' | 'unclear';

export type Renewal = 'renewed' | 'lost' | 'failed';

/** What became of a commit whose reply is missing; 'gone': not applied, and it never will be. */
export type Verdict = 'committed' | 'gone' | 'unknown';

/** ms between two tries to give a grant back, doubled from the first to the second. */
const FIRST_PAUSE = 50;
const LAST_PAUSE = 1_000;

/**
 * The lock scripts as typed calls. Each is one round trip, bounded by commandTimeout, and rejects with
 * LockUnavailableError when Redis refuses it or does not answer.
 */
export class LockStore {
  readonly #client: RedisClient;
  readonly #commandTimeout: number;
  readonly #closing = new AbortController();
  readonly #giveBacks = new Set<Promise<void>>();
  #lostConnections = 0;

  constructor(client: RedisClient, commandTimeout: number) {
    this.#client = client;
    this.#commandTimeout = commandTimeout;
    client.on('close', this.#countLostConnection);
  }

  /** All of the claim or nothing. A grant whose reply is late or lost is given back, see {@link giveBack}. */
  async acquire(claim: Claim, ttl: number): Promise<AcquireReply> {
    const reply = this.#run(ACQUIRE, triples(claim.keys), [claim.token]).then(decodeAcquire);
    try {
      return await this.#bounded(reply, claim.keys);
    } catch (error) {
      this.giveBack(claim, ttl, reply);
      throw error;
    }
  }

  /**
   * A client sends a request again when the connection died before its reply: 'not ours' would then be said of a
   * lock that the first of the two requests released.
   */
  async release(claim: Claim): Promise<Release> {
    const lostConnections = this.#lostConnections;
    const reply = this.#run(RELEASE, triples(claim.keys), [claim.token]);
    const [released] = (await this.#bounded(reply, claim.keys)) as [number | string];
    if (Number(released) === claim.keys.length) return 'released';
    return this.#lostConnections === lostConnections ? 'not ours' : 'unclear';
  }

  /** Renews all claims in one round trip. A claim is renewed only if all of its resources are. */
  async renew(claims: readonly (Claim & { readonly ttl: number })[]): Promise<Renewal[]> {
    const keys = claims.flatMap((claim) => claim.keys.flatMap(({ owner, fence }) => [owner, fence]));
    const argv = claims.flatMap(({ token, ttl, keys }) => keys.flatMap(() => [token, ttl]));
    const reply = this.#run(RENEW, keys, argv);
    const answers = (await this.#bounded(
      reply,
      claims.flatMap((claim) => claim.keys),
    )) as (number | string)[];
    let next = 0;
    return claims.map((claim) => {
      const own = answers.slice(next, (next += claim.keys.length)).map(Number);
      if (own.every((answer) => answer === 1)) return 'renewed';
      return own.includes(0) ? 'lost' : 'failed';
    });
  }

  /** Takes back what the claim has, and says what became of its commit, if one is named. */
  async burn(
    claim: Claim,
    commit?: { readonly id: string; readonly fencingToken: number },
  ): Promise<Verdict> {
    const reply = this.#run(BURN, triples(claim.keys), [
      claim.token,
      commit?.id ?? '',
      commit?.fencingToken ?? 0,
    ]);
    const [verdict] = (await this.#bounded(reply, claim.keys)) as [Verdict];
    return verdict;
  }

  /**
   * Undoes, in the background, a grant that nobody will use: as soon as Redis answers, and at the latest the lease
   * ends by itself, which is when this stops trying.
   *
   * @param reply of an acquire still under way; nothing is done when it turns out that nothing was granted.
   */
  giveBack(claim: Claim, ttl: number, reply?: Promise<AcquireReply>): void {
    const work = this.#giveBack(claim, ttl, reply).finally(() => this.#giveBacks.delete(work));
    this.#giveBacks.add(work);
  }

  /** Lets the running give-backs have one more round trip, then stops them. */
  async close(): Promise<void> {
    const left = Promise.all(this.#giveBacks);
    await within(this.#commandTimeout, left).catch(() => undefined); // their leases end by themselves
    this.#closing.abort();
    this.#client.off('close', this.#countLostConnection);
  }

  readonly #countLostConnection = (): void => {
    this.#lostConnections += 1;
  };

  async #giveBack(claim: Claim, ttl: number, reply?: Promise<AcquireReply>): Promise<void> {
    const uncertain = await reply?.then((answer) => !answer.granted).catch(() => false);
    if (uncertain === true) return;
    const end = performance.now() + ttl;
    let delay = FIRST_PAUSE;
    do {
      try {
        await this.burn(claim);
        return;
      } catch {
        // Redis is still not there. Nobody is waiting for this: the next try, or the lease's end, mends it.
        await pause(delay, this.#closing.signal);
        delay = Math.min(2 * delay, LAST_PAUSE);
      }
    } while (!this.#closing.signal.aborted && performance.now() < end);
  }

  async #run(script: Script, keys: readonly string[], argv: readonly (string | number)[]): Promise<unknown> {
    const args = [keys.length, ...keys, ...argv] as const;
    try {
      return await this.#client.evalsha(script.sha, ...args);
    } catch (error) {
      if (!(error instanceof Error) || !error.message.startsWith('NOSCRIPT')) throw error;
      return this.#client.eval(script.text, ...args);
    }
  }

  async #bounded<T>(reply: Promise<T>, keys: readonly ResourceKeys[]): Promise<T> {
    try {
      return await within(this.#commandTimeout, reply);
    } catch (error) {
      throw unavailable(error, keys);
    }
  }
}

/** KEYS of most scripts: owner, queue, fence of one resource after the other. */
export function triples(keys: readonly ResourceKeys[]): string[] {
  return keys.flatMap(({ owner, queue, fence }) => [owner, queue, fence]);
}

function unavailable(cause: unknown, keys: readonly ResourceKeys[]): LockUnavailableError {
  const said = cause instanceof Error ? cause.message : String(cause);
  return new LockUnavailableError(`Redis could not be asked for the lock: ${said}`, {
    resources: keys.map(({ resource }) => resource),
    cause,
  });
}

function decodeAcquire(reply: unknown): AcquireReply {
  const [granted, ...rest] = (reply as (number | string)[]).map(Number);
  if (granted === 1) return { granted: true, fencingTokens: rest };
  const left = rest[0] ?? -1;
  return { granted: false, retryAfter: left >= 0 ? left : undefined };
}
