import { now } from './instant.js';
import type { Instant } from './instant.js';
import { pause, within } from './deadline.js';
import { triples } from './lock-keys.js';
import type { Claim, ResourceKeys } from './lock-keys.js';
import { ACQUIRE, BURN, EXTEND, RELEASE, RENEW } from './lock-scripts.js';
import type { RedisClient } from './redis-client.js';
import { commitRecord } from './script-parts.js';
import type { Script } from './script-parts.js';
import { NotSentError, ScriptRunner, unavailable } from './script-runner.js';

/** A wish to wait: for how many ms the place may be needed, and how many waiters there may be. */
export interface Place {
  /** '0' at first, then what the last answer said. */
  readonly ticket: string;
  readonly neededFor: number;
  readonly maxWaiters: number;
}

export type AcquireReply =
  | { readonly granted: true; readonly fencingTokens: readonly number[]; readonly placeLost: boolean }
  | {
      readonly granted: false;
      /** The place was not there any more: those of other waiters of this client may be gone as well. */
      readonly placeLost: boolean;
      /** ms the holder's lease has left, where it has an end. */
      readonly retryAfter: number | undefined;
      /** The place in the queue, if one was asked for; undefined when all are taken. */
      readonly ticket: string | undefined;
    };

/** A waiter of this client that got the lock when another one gave it up. */
export interface HandedOver {
  readonly token: string;
  readonly fencingToken: number;
  /** Taken before the request was sent: its lease counts from there. */
  readonly sent: Instant;
}

/** What a release came to; 'unclear': it may have been ours, and released by the same request sent twice. */
export type Release = 'released' | 'not ours' | 'unclear';

export type Renewal = 'renewed' | 'lost' | 'failed';

/** What became of a commit whose reply is missing; 'gone': not applied, and it never will be. */
export type Verdict = 'committed' | 'gone' | 'unknown';

/** ms between two tries to give a grant back, doubled from the first to the second. */
const FIRST_PAUSE = 50;
const LAST_PAUSE = 1_000;
/** ms a grant that nobody knows the ttl of is tried to be given back. */
const LONGEST_GIVE_BACK = 60_000;

/**
 * The lock scripts as typed calls. Each is one round trip, bounded by commandTimeout, and rejects with
 * LockUnavailableError when Redis refuses it or does not answer.
 */
export class LockStore {
  readonly #runner: ScriptRunner;
  readonly #commandTimeout: number;
  readonly #closing = new AbortController();
  readonly #giveBacks = new Set<Promise<void>>();

  /** Told of every local waiter that got a lock; false: nobody of that token waits any more. */
  onHandOver: (handedOver: HandedOver) => boolean = () => false;
  /** Told of every lock that went to another client provisionally, while others wait: somebody has to look whether it was taken. */
  onHandedAway: (keys: ResourceKeys) => void = () => undefined;
  /** Told when a waiter's place was gone already: those of others of this client may be gone as well. */
  onPlaceLost: (claim: Claim) => void = () => undefined;
  /** Told when a claim may have been given up and the answer is lost: a local waiter may have it without knowing. */
  onUnclear: (claim: Claim) => void = () => undefined;

  constructor(client: RedisClient, commandTimeout: number) {
    this.#runner = new ScriptRunner(client, commandTimeout);
    this.#commandTimeout = commandTimeout;
  }

  /** All of the claim or nothing. A grant whose reply is late or lost is given back, see {@link giveBack}. */
  async acquire(claim: Claim, ttl: number): Promise<AcquireReply> {
    const reply = this.#runner.run(ACQUIRE, triples(claim.keys), [claim.token, '', 0, '']);
    try {
      return decodeAcquire(await this.#runner.bounded(reply, claim.keys));
    } catch (error) {
      this.giveBack(claim, ttl, reply.then(decodeAcquire));
      throw error;
    }
  }

  /**
   * Asks for a single resource, or a place in its queue. Not bounded, unlike all others: the waiter has a deadline of
   * its own, and as long as an ask is under way its answer decides what the waiter has.
   *
   * @param isWanted asked before it is sent, which an outage may delay
   */
  async ask(
    claim: Claim,
    { ticket, neededFor, maxWaiters }: Place,
    isWanted: () => boolean,
  ): Promise<AcquireReply> {
    const argv = [claim.token, ticket, Math.ceil(neededFor), maxWaiters === Infinity ? '' : maxWaiters];
    try {
      return decodeAcquire(await this.#runner.run(ACQUIRE, triples(claim.keys), argv, isWanted));
    } catch (error) {
      throw unavailable(error, claim.keys);
    }
  }

  /**
   * A client sends a request again when the connection died before its reply: 'not ours' would then be said of a
   * lock that the first of the two requests released.
   */
  async release(claim: Claim): Promise<Release> {
    const lostConnections = this.#runner.lostConnections;
    const sent = now();
    const [released, ...waiters] = await this.#giveUp<number | string>(RELEASE, claim, []);
    this.reportHandOvers(claim, waiters, sent);
    if (Number(released) === claim.keys.length) return 'released';
    if (this.#runner.lostConnections === lostConnections) return 'not ours';
    this.onUnclear(claim);
    return 'unclear';
  }

  /**
   * Renews all claims in one round trip. A claim is renewed only if all of its resources are.
   *
   * @param onAnswer told for each claim, also when the answer is late
   * @param timeout ms this waits at most
   */
  async renew<Renewed extends Claim & { readonly ttl: number }>(
    claims: readonly Renewed[],
    onAnswer: (claim: Renewed, renewal: Renewal) => void,
    timeout: number,
  ): Promise<void> {
    const keys = claims.flatMap((claim) => claim.keys.flatMap(({ owner, fence }) => [owner, fence]));
    const argv = claims.flatMap(({ token, ttl, keys }) => keys.flatMap(() => [token, ttl]));
    const reply = this.#runner.run(RENEW, keys, argv).then((answers) => {
      let next = 0;
      for (const claim of claims) {
        const own = (answers as (number | string)[]).slice(next, (next += claim.keys.length)).map(Number);
        const failed = own.includes(0) ? 'lost' : 'failed';
        onAnswer(claim, own.every((answer) => answer === 1) ? 'renewed' : failed);
      }
    });
    await this.#runner.bounded(
      reply,
      claims.flatMap((claim) => claim.keys),
      timeout,
    );
  }

  /** Makes a lease last `ttl` ms from now, and tells the next in line if that is sooner than it was to end. */
  async extend(claim: Claim, ttl: number): Promise<Renewal> {
    const reply = this.#runner.run(EXTEND, triples(claim.keys), [claim.token, ttl]);
    const renewed = Number(await this.#runner.bounded(reply, claim.keys));
    return renewed === claim.keys.length ? 'renewed' : 'lost';
  }

  /** Hands a lock over that is free although somebody waits for it. */
  async takeUp(keys: ResourceKeys): Promise<void> {
    await this.release({ token: 'nobody:0:0', keys: [keys] });
  }

  /** Takes back what the claim has, and says what became of its commit, if one is named. */
  async burn(
    claim: Claim,
    commit?: { readonly number: number; readonly fencingToken: number },
  ): Promise<Verdict> {
    const lostConnections = this.#runner.lostConnections;
    const sent = now();
    const { record, field } = commit
      ? commitRecord(claim.token, commit.fencingToken, commit.number)
      : { record: '', field: '' };
    const argv = [record, field, commit?.fencingToken ?? 0];
    const [verdict, placeLost, ...waiters] = await this.#giveUp<Verdict>(BURN, claim, argv);
    this.reportHandOvers(claim, waiters, sent);
    if (Number(placeLost) === 1) this.onPlaceLost(claim);
    // As in release: what a first request of the two handed over was never heard.
    if (this.#runner.lostConnections !== lostConnections) this.onUnclear(claim);
    return verdict;
  }

  /** What giving a claim up led to; for a script that ran elsewhere, inside a commit, its reply is passed on here. */
  reportHandOvers(claim: Claim, reply: readonly (string | number)[], sent: Instant): void {
    for (let i = 0; i + 1 < reply.length; i += 2) {
      const [token, number] = [String(reply[i]), Number(reply[i + 1])];
      const keys = claim.keys[number];
      if (token === '') {
        if (keys) this.onHandedAway(keys);
      } else if (!this.onHandOver({ token, fencingToken: number, sent })) {
        this.giveBack({ token, keys: claim.keys }, LONGEST_GIVE_BACK);
      }
    }
  }

  /**
   * Undoes, in the background, a grant or a place that nobody will use: as soon as Redis answers, and no longer than
   * it can last.
   *
   * @param lasts ms
   * @param reply of an acquire still under way; nothing is done when it turns out that nothing was granted.
   */
  giveBack(claim: Claim, lasts: number, reply?: Promise<AcquireReply>): void {
    const work = this.#giveBack(claim, lasts, reply).finally(() => this.#giveBacks.delete(work));
    this.#giveBacks.add(work);
  }

  /** Lets the running give-backs have one more round trip, then stops them. */
  async close(): Promise<void> {
    const left = Promise.all(this.#giveBacks);
    await within(this.#commandTimeout, left).catch(() => undefined); // their leases end by themselves
    this.#closing.abort();
    this.#runner.close();
  }

  async #giveUp<First>(
    script: Script,
    claim: Claim,
    argv: (string | number)[],
  ): Promise<[First, ...string[]]> {
    const reply = this.#runner.run(script, triples(claim.keys), [claim.token, ...argv]);
    try {
      return (await this.#runner.bounded(reply, claim.keys)) as [First, ...string[]];
    } catch (error) {
      this.onUnclear(claim);
      throw error;
    }
  }

  async #giveBack(claim: Claim, lasts: number, reply?: Promise<AcquireReply>): Promise<void> {
    const nothing = await reply?.then(
      ({ granted }) => !granted,
      (error: unknown) => error instanceof NotSentError,
    );
    if (nothing) return;
    const end = performance.now() + lasts;
    for (let delay = FIRST_PAUSE; performance.now() < end; delay = Math.min(2 * delay, LAST_PAUSE)) {
      // In an outage only the connection is waited for, not one try after the other.
      const ready = this.#runner.ready();
      if (ready) await Promise.race([ready, pause(end - performance.now(), this.#closing.signal)]);
      if (this.#closing.signal.aborted) return;
      try {
        await this.burn(claim);
        return;
      } catch {
        // Nobody is waiting for this: the next try, or the end of what it is about, mends it.
        await pause(delay, this.#closing.signal);
      }
    }
  }
}

function decodeAcquire(reply: unknown): AcquireReply {
  const [granted, ...rest] = reply as (number | string)[];
  if (Number(granted) === 1) {
    const [lost, ...fencingTokens] = rest.map(Number);
    return { granted: true, fencingTokens, placeLost: lost === 1 };
  }
  const [left = -1, ticket, lost] = rest;
  return {
    granted: false,
    retryAfter: Number(left) >= 0 ? Number(left) : undefined,
    ticket: ticket === undefined ? undefined : String(ticket),
    placeLost: Number(lost) === 1,
  };
}
