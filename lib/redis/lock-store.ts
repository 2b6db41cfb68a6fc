import { now } from './instant.js';
import type { CommitRequest } from './commit-pipeline.js';
import type { Instant } from './instant.js';
import { GiveBacks } from './give-backs.js';
import { tokensOf, triples } from './lock-keys.js';
import type { Claim, ResourceKeys } from './lock-keys.js';
import { ACQUIRE, BURN, EXTEND, FORCE_RELEASE, INSPECT, PASS_ON, RELEASE, RENEW } from './lock-scripts.js';
import {
  decodeAcquire,
  decodeBurn,
  decodeExtend,
  decodePassOn,
  decodeRelease,
  decodeRun,
  decodeState,
} from './lock-replies.js';
import type {
  AcquireReply,
  HandedOver,
  LockState,
  PassedOn,
  Place,
  Release,
  Renewal,
  Verdict,
} from './lock-replies.js';
import { ReplicaConfirmation } from './replica-confirmation.js';
import { commitRecord } from './script-parts.js';
import type { Script } from './script-parts.js';
import type { AnswerListener, ScriptCall } from './script-call.js';
import { bySlot } from './servers.js';
import type { Servers } from './servers.js';

/** Tries to take a lock away that changes hands meanwhile. */
const MAX_TRIES = 10;

/** ms a grant that nobody knows the ttl of is tried to be given back. */
export const LONGEST_GIVE_BACK = 60_000;

/** A commit whose reply is missing: see CommitRequest. */
type SettledCommit = Pick<CommitRequest, 'number' | 'fencingToken' | 'place'>;

/**
 * The lock scripts as typed calls. Each is one round trip, bounded by commandTimeout, and rejects with
 * LockUnavailableError when Redis refuses it or does not answer.
 */
export class LockStore {
  readonly #servers: Servers;
  readonly #confirmation: ReplicaConfirmation;
  readonly #giveBacks: GiveBacks;

  /** Told of every local waiter that got a lock; false: nobody uses that token any more. */
  onHandOver: (handedOver: HandedOver) => boolean = () => false;
  /**
   * Called where somebody has to look after a lock: 'later', it went to another client provisionally, while others wait;
   * 'now', it is free, and there are more places of clients that are gone than one script call may clear away.
   */
  onHandedAway: (keys: ResourceKeys, look: 'now' | 'later') => void = () => undefined;
  /** Told when a waiter's place was gone already: those of others of this client may be gone as well. */
  onPlaceLost: (claim: Claim) => void = () => undefined;
  /** Told when a claim may have been given up and the answer is lost: a local waiter may have it without knowing. */
  onUnclear: (claim: Claim) => void = () => undefined;

  /** @param replicas that have to confirm a grant before it counts */
  constructor(servers: Servers, commandTimeout: number, replicas: number) {
    this.#servers = servers;
    this.#confirmation = new ReplicaConfirmation(servers, commandTimeout, replicas);
    this.#giveBacks = new GiveBacks(servers.runner, commandTimeout, (claim) => this.burn(claim));
  }

  /** Whether a grant counts only when Redis has been asked about it. */
  get confirmsGrants(): boolean {
    return this.#confirmation.isNeeded;
  }

  /** @throws LockUnavailableError when there is no answer within commandTimeout */
  bounded<T>(answer: Promise<T>, keys: readonly ResourceKeys[]): Promise<T> {
    return this.#servers.runner.bounded(answer, keys);
  }

  /** All of the claim or nothing. A grant whose reply is late or lost is given back, see {@link giveBack}. */
  acquire(claim: Claim, ttl: number): Promise<AcquireReply> {
    const parts = this.#parts(claim);
    return parts.length === 1 ? this.#acquirePart(claim, ttl) : this.#acquireAll(claim, parts, ttl);
  }

  async #acquireAll(claim: Claim, parts: readonly Claim[], ttl: number): Promise<AcquireReply> {
    const tokens = new Map<string, number | undefined>();
    const granted: Claim[] = [];
    try {
      for (const part of parts) {
        const reply = await this.#acquirePart(part, ttl);
        if (!reply.granted) {
          await Promise.all(granted.map((each) => this.burn(each)));
          return reply;
        }
        granted.push(part);
        part.keys.forEach(({ owner }, i) => tokens.set(owner, reply.fencingTokens[i]));
      }
    } catch (error) {
      for (const part of granted) this.giveBack(part, ttl);
      throw error;
    }
    const fencingTokens = claim.keys.map(({ owner }) => tokens.get(owner) ?? 0);
    return { granted: true, fencingTokens, placeLost: false, run: [] };
  }

  async #acquirePart(claim: Claim, ttl: number): Promise<AcquireReply> {
    const asked = this.#confirmation.before(claim);
    const { keys } = claim;
    const call = this.#servers.acquires.call({
      script: ACQUIRE,
      names: triples(keys),
      argv: [claim.token, ''],
      keys,
      decode: keys.length === 1 ? decodeAcquire : (reply) => decodeAcquire(reply, keys.length),
    });
    try {
      const answer = await call.answer;
      if (answer.granted && asked) await this.#confirmation.confirm(claim, await asked);
      return answer;
    } catch (error) {
      this.giveBack(claim, ttl, call.reply);
      throw error;
    }
  }

  /**
   * Asks for a single resource, or a place in its queue. Who has a place can wait for the answer as long as for the lock,
   * and as long as an ask is under way its answer decides what the waiter has: it has no deadline then.
   */
  ask(
    claim: Claim,
    { ticket, neededFor, maxWaiters }: Place,
    listener: AnswerListener<AcquireReply>,
  ): Pick<ScriptCall<AcquireReply>, 'reply'> {
    const places =
      maxWaiters === Infinity ? '' : ` ${Math.min(Math.ceil(maxWaiters), Number.MAX_SAFE_INTEGER)}`;
    const bounded = ticket === '0';
    return this.#servers.acquires.call({
      script: ACQUIRE,
      names: triples(claim.keys),
      argv: [claim.token, `${ticket} ${Math.ceil(neededFor)}${places}`],
      keys: claim.keys,
      decode: decodeAcquire,
      listener: this.#confirmation.listener(claim, listener, bounded),
      bounded,
    });
  }

  /**
   * A client sends a request again when the connection died before its reply: 'not ours' would then be said of a
   * lock that the first of the two requests released.
   */
  release(claim: Claim): Promise<Release> {
    const parts = this.#parts(claim);
    return parts.length === 1 ? this.#releasePart(claim) : this.#releaseAll(parts);
  }

  async #releaseAll(claims: readonly Claim[]): Promise<Release> {
    const releases = await Promise.all(claims.map((claim) => this.#releasePart(claim)));
    return releases.find((release) => release !== 'released') ?? 'released';
  }

  async #releasePart(claim: Claim): Promise<Release> {
    const { lostConnections } = this.#servers;
    const sent = now();
    const number = claim.predecessors?.length ? (claim.fencingTokens?.[0] ?? '') : '';
    const { released, handedOver } = await this.#giveUp(RELEASE, claim, [number], decodeRelease);
    this.reportHandOvers(claim, handedOver, sent);
    if (released === claim.keys.length) return 'released';
    if (this.#servers.lostConnections === lostConnections) {
      // Whoever found the lock free before it was renewed took this client for a silent one.
      if (claim.predecessors?.includes(claim.token)) this.onPlaceLost(claim);
      return 'not ours';
    }
    this.onUnclear(claim);
    return 'unclear';
  }

  /**
   * Makes the claim owner in place of its predecessors, where one of them is. Sent at once, so that whatever this
   * process sends later comes after it. Can be sent again.
   *
   * @throws LockUnavailableError
   */
  async passOn(claim: Claim): Promise<PassedOn> {
    const { runner, lostConnections } = this.#servers;
    const argv = [claim.token, claim.fencingTokens?.[0] ?? 0, ...(claim.predecessors ?? [])];
    const { keys } = claim;
    const call = runner.call({ script: PASS_ON, names: triples(keys), argv, keys, decode: decodePassOn });
    const { isOurs, run } = await call.answer;
    const foreign = this.#servers.lostConnections === lostConnections ? 'not ours' : 'unclear';
    return { release: isOurs ? 'released' : foreign, run };
  }

  /**
   * Renews all claims in one round trip. A claim is renewed only if all of its resources are.
   *
   * @param onAnswer told for each claim, also when the answer is late
   * @param timeout ms this waits at most
   */
  async renew<Renewed extends Claim & { readonly ttl: number; readonly terms: number }>(
    claims: readonly Renewed[],
    onAnswer: (claim: Renewed, renewal: Renewal) => void,
    timeout: number,
  ): Promise<void> {
    const answers = new Map<Renewed, number[]>(claims.map((claim) => [claim, []]));
    const groups = bySlot(
      claims.flatMap((claim) => claim.keys.map((keys) => ({ claim, keys }))),
      ({ keys }) => this.#servers.slotOf(keys.owner),
    );
    const { runner } = this.#servers;
    const renewals = groups.map((entries) => {
      const keys = entries.map((entry) => entry.keys);
      const call = runner.call({
        script: RENEW,
        names: keys.flatMap(({ owner, fence }) => [owner, fence]),
        argv: entries.flatMap(({ claim: { token, ttl, terms } }) => [token, ttl, terms]),
        keys,
        decode: (replies) => {
          entries.forEach(({ claim }, i) => {
            const own = answers.get(claim) ?? [];
            if (own.push(Number((replies as unknown[])[i])) < claim.keys.length) return;
            const failed = own.includes(0) ? 'lost' : 'failed';
            onAnswer(claim, own.every((answer) => answer === 1) ? 'renewed' : failed);
          });
        },
      });
      return runner.bounded(call.answer, keys, timeout);
    });
    const failed = (await Promise.allSettled(renewals)).find(({ status }) => status === 'rejected');
    if (failed?.status === 'rejected') throw failed.reason;
  }

  /**
   * Makes a lease last `ttl` ms from now, and has the next in line ask if that is sooner than it was to end.
   *
   * @param terms the number of this extension of the lease: one that Redis reads after a later one does nothing
   */
  async extend(claim: Claim, ttl: number, terms: number): Promise<Renewal> {
    const { runner } = this.#servers;
    const renewals = await Promise.all(
      this.#parts(claim).map(async ({ token, keys }) => {
        const argv = [token, ttl, terms];
        const request = { script: EXTEND, names: triples(keys), argv, keys, decode: decodeExtend };
        for (;;) {
          const { ours, more } = await runner.call(request).answer;
          if (ours < keys.length || !more) return ours === keys.length;
        }
      }),
    );
    return renewals.every(Boolean) ? 'renewed' : 'lost';
  }

  /** Hands a lock over that is free although somebody waits for it. */
  async takeUp(keys: ResourceKeys): Promise<void> {
    await this.release({ token: 'nobody:0:0', keys: [keys] });
  }

  /** @returns null where nobody holds it */
  async inspect(keys: ResourceKeys): Promise<LockState | null> {
    const { runner } = this.#servers;
    const names = triples([keys]);
    const decode = (reply: unknown) => decodeState(reply, keys);
    return runner.call({ script: INSPECT, names, argv: [''], keys: [keys], decode }).answer;
  }

  /** Takes the lock away from its owner, and hands it to the next in line. */
  async forceRelease(keys: ResourceKeys): Promise<boolean> {
    const claim = { token: 'nobody:0:0', keys: [keys] };
    for (let tries = 1; ; tries += 1) {
      const state = await this.inspect(keys);
      const sent = now();
      const argv = [state?.holder ?? ''];
      const { released, handedOver } = await this.#giveUp(FORCE_RELEASE, claim, argv, decodeRelease);
      this.reportHandOvers(claim, handedOver, sent);
      // It changed hands in between: the next owner is as good.
      if (released !== 2 || tries === MAX_TRIES) return released === 1;
    }
  }

  /** Takes back what the claim has, and says what became of its commit, if one is named. */
  async burn(claim: Claim, commit?: SettledCommit): Promise<Verdict> {
    const [first, ...others] = this.#parts(claim);
    const verdicts = [this.#burnPart(first ?? claim, commit), ...others.map((part) => this.#burnPart(part))];
    const [verdict = 'gone'] = await Promise.all(verdicts);
    return verdict;
  }

  async #burnPart(claim: Claim, commit?: SettledCommit): Promise<Verdict> {
    const { lostConnections } = this.#servers;
    const sent = now();
    const { record, field } = commit
      ? commitRecord(claim.token, commit.fencingToken, commit.number, commit.place)
      : { record: '', field: '' };
    const argv = [record, field, commit?.fencingToken ?? claim.fencingTokens?.[0] ?? 0];
    const { verdict, placeLost, handedOver } = await this.#giveUp(BURN, claim, argv, decodeBurn);
    this.reportHandOvers(claim, handedOver, sent);
    if (placeLost) this.onPlaceLost(claim);
    // As in release: what a first request of the two handed over was never heard.
    if (this.#servers.lostConnections !== lostConnections) this.onUnclear(claim);
    return verdict;
  }

  /** What giving a claim up led to; for a script that ran elsewhere, inside a commit, its reply is passed on here. */
  reportHandOvers(claim: Claim, reply: readonly (string | number)[], sent: Instant): void {
    for (let i = 0; i + 3 < reply.length; i += 4) {
      const [token, keys, number, run] = [
        String(reply[i]),
        claim.keys[Number(reply[i + 1])],
        reply[i + 2],
        reply[i + 3],
      ];
      if (!keys) continue;
      if (token === '') this.onHandedAway(keys, number === 'now' ? 'now' : 'later');
      else if (!this.onHandOver({ token, keys, fencingToken: Number(number), sent, run: decodeRun(run) })) {
        this.giveBack({ token, keys: [keys] }, LONGEST_GIVE_BACK);
      }
    }
  }

  /**
   * Undoes, in the background, a grant or a place that nobody will use: as soon as Redis answers, and no longer than
   * it can last.
   *
   * @param lasts ms
   * @param reply of an acquire still under way; nothing is done when it turns out that there is nothing to undo.
   */
  giveBack(claim: Claim, lasts: number, reply?: Promise<AcquireReply>): void {
    this.#giveBacks.begin(claim, lasts, reply);
  }

  /** Lets the running give-backs have one more round trip, then stops them. */
  close(): Promise<void> {
    return this.#giveBacks.close();
  }

  /** The claim in pieces whose keys can stand in one script: where there is no cluster, that is all of it. */
  #parts(claim: Claim): readonly Claim[] {
    const [first] = claim.keys;
    if (claim.keys.length === 1 || !first || this.#servers.slotOf(first.owner) === undefined) return [claim];
    const groups = bySlot(claim.keys, ({ owner }) => this.#servers.slotOf(owner));
    return groups.map((keys) => ({ token: claim.token, keys })); // several resources have no predecessors
  }

  #giveUp<T>(
    script: Script,
    claim: Claim,
    argv: readonly (string | number)[],
    decode: (reply: unknown) => T,
  ): Promise<T> {
    const { keys } = claim;
    const given = [tokensOf(claim), ...argv];
    const call = this.#servers.runner.call({ script, names: triples(keys), argv: given, keys, decode });
    return call.answer.catch((error: unknown) => {
      this.onUnclear(claim);
      throw error;
    });
  }
}
