import { LockNotAcquiredError, LockUnavailableError } from '../errors/lock.errors.js';
import type { LockNotAcquiredReason } from '../errors/lock.errors.js';
import { within } from '../redis/deadline.js';
import { elapsedSince, now } from '../redis/instant.js';
import type { Instant } from '../redis/instant.js';
import { ResourceKeys, resourcesOf } from '../redis/lock-keys.js';
import type { Claim } from '../redis/lock-keys.js';
import { LONGEST_GIVE_BACK } from '../redis/lock-store.js';
import type { LockStore } from '../redis/lock-store.js';
import type { AcquireReply, HandedOver } from '../redis/lock-replies.js';
import { isPassing } from '../redis/redis-client.js';
import type { Servers } from '../redis/servers.js';
import { nameOf } from '../redis/tokens.js';
import type { Tokens } from '../redis/tokens.js';
import type { WakeUpMessage } from '../redis/wake-up-message.js';
import type { AbortListeners } from './abort-listeners.js';
import { Ask } from './ask.js';
import { Bag } from './bag.js';
import type { RecentTimes } from './recent-times.js';
import { Granted, Waiter } from './waiter.js';
import type { Patience, PendingClaim, Refused } from './waiter.js';
import { WaitingLine } from './waiting-line.js';

/** ms until the next in line asks when the first one could not. */
const AFTER_FAILURE = 100;
const MAX_LATE_GRANTS = 3;

/** Where this service hears of hand-overs. */
type Places = Pick<
  Servers,
  'sharded' | 'hears' | 'subscribed' | 'unsubscribed' | 'lostConnections' | 'clientPrefix'
>;

export interface WaitingRoomParts {
  readonly store: LockStore;
  readonly servers: Places;
  readonly commandTimeout: number;
  readonly tokens: Tokens;
  readonly aborts: AbortListeners;
  readonly times: RecentTimes;
  /** Whether a token that does not wait here was granted the resource of that key, or is about to be given up. */
  readonly isInUse: (token: string, owner: string) => boolean;
}

/**
 * Where the waiters of one service wait. Each has a place in the queue in Redis and is silent: it asks again when it
 * is told that the lock is its own, when the holder's lease ends (the first one in line does that for all), and after
 * the subscription was re-made. A message is a hint; what Redis answers to an ask is the truth. See docs/waiting.md.
 */
export class WaitingRoom {
  readonly #store: LockStore;
  readonly #servers: Places;
  readonly #commandTimeout: number;
  readonly #isInUse: (token: string, owner: string) => boolean;
  readonly #tokens: Tokens;
  readonly #aborts: AbortListeners;
  readonly #times: RecentTimes;
  /** Whose first ask is under way: most of them are granted, and never get in line. */
  readonly #newcomers = new Bag<Waiter>();
  /** Those in line. */
  readonly #byName = new Map<string, Waiter>();
  readonly #lines = new Map<string, WaitingLine>();
  readonly #asks = {
    answered: (ask: Ask, answer: AcquireReply) => this.#answered(ask, answer),
    failed: (ask: Ask, error: LockUnavailableError) => this.#failed(ask, error),
  };
  #closed: 'no' | 'except nested' | 'yes' = 'no';

  /**
   * Asked first when a waiter is told that it has the lock by a grant that was made after that instant: whether it begins
   * without asking.
   */
  onHandedOver: (waiter: Waiter, fencingToken: number, after: Instant) => boolean = () => false;

  constructor({ store, servers, commandTimeout, tokens, aborts, times, isInUse }: WaitingRoomParts) {
    this.#isInUse = isInUse;
    this.#tokens = tokens;
    this.#aborts = aborts;
    this.#times = times;
    this.#store = store;
    this.#servers = servers;
    this.#commandTimeout = commandTimeout;
    store.onHandOver = (handedOver) => this.#handOver(handedOver);
    store.onUnclear = (claim) => this.#recheckAll(claim);
    store.onPlaceLost = (claim) => this.#recheckAll(claim);
  }

  /**
   * Waits for a claim on a single resource.
   *
   * @throws LockNotAcquiredError timeout, aborted, queue_full or shutdown
   * @throws LockUnavailableError when Redis cannot be asked. In either case the place is given up first.
   */
  wait(claim: PendingClaim, ttl: number, patience: Patience): Promise<Granted> {
    const { sharded } = this.#servers;
    if (sharded || this.#servers.subscribed(claim)) return this.#waitUnheard(claim, ttl, patience);
    return new Promise((resolve, reject) => {
      this.#assertWelcome(claim, patience);
      const waiter = this.#makeWaiter(claim, ttl, patience, resolve, reject);
      this.#newcomers.add(waiter);
      this.#ask(waiter);
    });
  }

  /** The same where a subscription may have to be made first. */
  async #waitUnheard(claim: PendingClaim, ttl: number, patience: Patience): Promise<Granted> {
    const isFirst = !this.#servers.hears(claim) && !this.#lines.has(ownerKey(claim));
    if (this.#servers.sharded && isFirst && patience.until - performance.now() > this.#commandTimeout) {
      // What is free needs no subscription, which each slot has of its own here.
      const acquired = now();
      const reply = await this.#store.acquire(claim, ttl);
      if (reply.granted) return new Granted(claim, reply.fencingTokens, acquired);
    }
    const line = this.#lineFor(claim);
    line.coming += 1;
    try {
      const subscribed = this.#servers.subscribed(claim);
      if (subscribed) await this.#inTime(subscribed, claim);
      this.#assertWelcome(claim, patience);
    } catch (error) {
      line.coming -= 1;
      this.#closeIfEmpty(line, claim);
      throw error;
    }
    line.coming -= 1;
    return new Promise((resolve, reject) => {
      const waiter = this.#makeWaiter(claim, ttl, patience, resolve, reject);
      this.#getInLine(waiter);
      this.#ask(waiter);
    });
  }

  #lineFor(claim: Claim): WaitingLine {
    const known = this.#lines.get(ownerKey(claim));
    if (known) return known;
    const line = new WaitingLine((waiter) => this.#askOne(waiter));
    this.#lines.set(ownerKey(claim), line);
    return line;
  }

  /** @throws LockUnavailableError */
  async #inTime(subscribed: Promise<void>, { keys }: Claim): Promise<void> {
    try {
      await within(this.#commandTimeout, subscribed);
    } catch (cause) {
      const message = `Waiting is not possible, since Redis could not be subscribed to: ${String(cause)}`;
      throw new LockUnavailableError(message, { resources: resourcesOf(keys), cause });
    }
  }

  /** @throws LockNotAcquiredError when the application closes, or the caller has aborted */
  #assertWelcome({ keys }: Claim, patience: Patience): void {
    if (this.#closed === 'yes' || (this.#closed === 'except nested' && !patience.nested)) {
      throw new LockNotAcquiredError('shutdown', { resources: resourcesOf(keys) });
    }
    if (patience.signal?.aborted) {
      throw new LockNotAcquiredError('aborted', {
        resources: resourcesOf(keys),
        cause: patience.signal.reason,
      });
    }
  }

  /** A message for one of our waiters, however old: the lock seems to be its own, or it has to look why not. */
  told({ name, owner: prefixed, handedOver }: WakeUpMessage): void {
    const { clientPrefix } = this.#servers;
    if (!prefixed.startsWith(clientPrefix)) return;
    const owner = prefixed.slice(clientPrefix.length);
    const waiter = this.#find(name, owner);
    const token = waiter?.claim.token ?? this.#tokens.ofName(name);
    if (token === undefined) return;
    const isGrant = handedOver?.isFor(token) ?? false;
    if (!waiter) return isGrant ? this.#giveBackUnknown(token, owner) : undefined;
    const { asking, patience, refused } = waiter;
    // The answer to an ask that is under way comes first.
    if (handedOver && isGrant && refused && !asking && !patience.isPart) {
      const { fencingToken, run } = handedOver;
      if (this.#isNews(refused, fencingToken)) {
        this.runs(owner, run);
        if (this.onHandedOver(waiter, fencingToken, refused.sent)) return;
      }
    }
    this.#ask(waiter);
  }

  /** A request that Redis read late has put a token in line, or made it the owner, that waits no more. */
  #giveBackUnknown(token: string, owner: string): void {
    const keys = ResourceKeys.ofOwner(owner);
    if (keys && !this.#isInUse(token, owner))
      this.#store.giveBack({ token, keys: [keys] }, LONGEST_GIVE_BACK);
  }

  /** A grant before the last refusal has ended by then; and a refusal by one server says nothing of what another one does. */
  #isNews({ lastFencingToken, lostConnections }: Refused, fencingToken: number): boolean {
    return fencingToken > lastFencingToken && lostConnections === this.#servers.lostConnections;
  }

  /** One who waits for several resources has the same name for each, one after the other. */
  #find(name: string, owner: string): Waiter | undefined {
    const waiter = this.#byName.get(name) ?? this.#newcomers.find((each) => each.name === name);
    return waiter?.resource.owner === owner ? waiter : undefined;
  }

  *#everybody(): Iterable<Waiter> {
    yield* this.#byName.values();
    yield* this.#newcomers;
  }

  /** Messages may have been lost, and places with them: all who wait ask again. */
  askAll(): void {
    for (const waiter of this.#everybody()) this.#ask(waiter);
  }

  /** Redis has said which waiters come before those of all other clients. */
  runs(owner: string, run: readonly string[]): void {
    const line = this.#lines.get(owner);
    if (line) line.run = [...run];
  }

  /** Who comes next, where that is known to be a waiter of this service that can begin at once. */
  nextInLine(owner: string): Waiter | undefined {
    const line = this.#lines.get(owner);
    const name = line?.nextOfRun((each) => this.#find(each, owner) !== undefined);
    const waiter = name === undefined ? undefined : this.#find(name, owner);
    // The answer to an ask that is under way comes first.
    return waiter && !waiter.patience.isPart && !waiter.asking ? waiter : undefined;
  }

  /** The waiter has the lock. */
  begin(waiter: Waiter, granted: Granted): void {
    this.#leave(waiter, 'granted');
    if (waiter.ticket !== '0') this.#times.addWait(performance.now() - waiter.began);
    waiter.resolve(granted);
    this.#lineOf(waiter)?.leaseEndsIn(waiter.ttl);
  }

  /** One of ours may have one of these locks without knowing, or may have lost its place. */
  #recheckAll(claim: Claim): void {
    for (const { owner } of claim.keys) {
      void this.#lines.get(owner)?.recheck();
      for (const newcomer of this.#newcomers) if (ownerKey(newcomer.claim) === owner) this.#ask(newcomer);
    }
  }

  /** Sends everybody away, or only those whose work is not needed for other work to end. */
  async close(alsoNested: boolean): Promise<void> {
    this.#closed = alsoNested ? 'yes' : 'except nested';
    const leaving = [...this.#everybody()].filter(({ patience }) => alsoNested || !patience.nested);
    await Promise.all(leaving.map((waiter) => this.#giveUp(waiter, 'shutdown')));
  }

  #makeWaiter(
    claim: PendingClaim,
    ttl: number,
    patience: Patience,
    resolve: (granted: Granted) => void,
    reject: (error: unknown) => void,
  ): Waiter {
    const waiter = new Waiter(claim, ttl, patience, resolve, reject);
    waiter.watchPatience(this.#aborts, (reason) => void this.#giveUp(waiter, reason));
    return waiter;
  }

  /** Its place is known by Redis, or about to be. */
  #getInLine(waiter: Waiter): void {
    this.#newcomers.delete(waiter);
    this.#byName.set(waiter.name, waiter);
    this.#lineFor(waiter.claim).waiters.add(waiter);
  }

  /** One ask at a time for each waiter; what goes wrong ends the waiting. */
  #ask(waiter: Waiter): void {
    if (waiter.state !== 'waiting') return this.#asked(waiter);
    waiter.askAgain = waiter.asking;
    if (waiter.asking) return;
    waiter.asking = true;
    void new Ask(this.#store, waiter, this.#asks);
  }

  /** Resolves when nothing is under way for it any more; at once when an ask is, which will be followed by another. */
  #askOne(waiter: Waiter): Promise<void> | undefined {
    if (waiter.asking) return void this.#ask(waiter);
    return new Promise((resolve) => {
      waiter.onAsked = resolve;
      this.#ask(waiter);
    });
  }

  /** Nothing is under way for it any more. */
  #asked(waiter: Waiter): void {
    waiter.onAsked?.();
    waiter.onAsked = undefined;
  }

  #answered({ waiter, sent, neededFor }: Ask, answer: AcquireReply): void {
    waiter.wasAnswered();
    this.#take(waiter, answer, neededFor, sent);
    waiter.asking = false;
    if (waiter.askAgain) this.#ask(waiter);
    else this.#asked(waiter);
  }

  #failed(ask: Ask, error: LockUnavailableError): void {
    const { waiter } = ask;
    // What has a place keeps it while Redis refuses to look: it asks again, until its own deadline.
    if (waiter.state === 'waiting' && waiter.ticket !== '0' && isPassing(error.cause)) {
      waiter.asking = false;
      waiter.askAfterPause(() => this.#ask(waiter));
      return this.#asked(waiter);
    }
    this.#store.giveBack(waiter.claim, ask.neededFor, ask.reply);
    this.#fail(waiter, error);
    this.#asked(waiter);
  }

  #take(waiter: Waiter, answer: AcquireReply, neededFor: number, sent: Instant): void {
    const { claim, ttl } = waiter;
    // Also when this one has given up meanwhile: the others do not know yet.
    if (answer.placeLost) void this.#lineOf(waiter)?.recheck();
    if (waiter.state !== 'waiting') {
      // It gave up while this was under way, and its burn may have come too early.
      if (answer.granted || answer.ticket !== undefined) this.#store.giveBack(claim, neededFor);
      return;
    }
    if (answer.granted) {
      this.runs(ownerKey(claim), answer.run);
      this.#grant(waiter, answer.fencingTokens, sent);
    } else if (answer.ticket === undefined) {
      void this.#giveUp(waiter, 'queue_full');
    } else {
      waiter.ticket = answer.ticket;
      waiter.retryAfter = answer.retryAfter;
      const { lastFencingToken } = answer;
      const { lostConnections } = this.#servers;
      waiter.refused =
        lastFencingToken === undefined ? undefined : { sent, lastFencingToken, lostConnections };
      if (waiter.place !== -1) this.#getInLine(waiter);
      const line = this.#lineOf(waiter);
      if (answer.before !== undefined) line?.comesAfter(answer.before, waiter.name);
      if (!this.#servers.hears(claim)) this.#listenAgain(waiter);
      line?.leaseEndsIn(answer.retryAfter ?? ttl);
    }
  }

  /** The subscription was lost since: what is published until it is there again is not heard. */
  #listenAgain(waiter: Waiter): void {
    this.#servers.subscribed(waiter.claim)?.then(
      () => this.#ask(waiter),
      () => undefined, // with the next ask
    );
  }

  /** @returns whether somebody uses that token: a waiter that an ask has granted the lock may have been handed it as well */
  #handOver({ token, keys: { owner }, fencingToken, sent, run }: HandedOver): boolean {
    const waiter = this.#find(nameOf(token), owner);
    if (!waiter) return this.#isInUse(token, owner);
    this.runs(owner, run);
    // An ask that is under way might take the lock again after it was used and released: its answer comes first.
    if (this.#store.confirmsGrants) this.#ask(waiter);
    else if (waiter.asking) waiter.askAgain = true;
    else this.#grant(waiter, [fencingToken], sent);
    return true;
  }

  #grant(waiter: Waiter, fencingTokens: readonly number[], acquired: Instant): void {
    if (elapsedSince(acquired) >= waiter.ttl) {
      // This process stood still meanwhile, and somebody else may have it by now; or a round trip takes that long.
      waiter.lateGrants += 1;
      if (waiter.lateGrants < MAX_LATE_GRANTS) return this.#ask(waiter);
      this.#store.giveBack(waiter.claim, waiter.ttl);
      const why = `The lease of ${waiter.ttl} ms was over before Redis' answer was there`;
      return this.#fail(waiter, new LockUnavailableError(why, { resources: resourcesOf(waiter.claim.keys) }));
    }
    this.begin(waiter, new Granted(waiter.claim, fencingTokens, acquired));
  }

  #fail(waiter: Waiter, error: LockUnavailableError): void {
    if (waiter.state !== 'waiting') return; // giving up goes on, and rejects it
    this.#leave(waiter, 'gone');
    waiter.reject(error);
    this.#lineOf(waiter)?.leaseEndsIn(AFTER_FAILURE);
  }

  /** Leaves the queue, and passes on a lock that crosses that. Rejects the waiter only after Redis has answered. */
  async #giveUp(waiter: Waiter, reason: LockNotAcquiredReason): Promise<void> {
    if (waiter.state !== 'waiting') return;
    const { claim, patience, retryAfter } = waiter;
    const cause: unknown = reason === 'aborted' ? patience.signal?.reason : undefined;
    const { neededFor } = waiter;
    this.#leave(waiter, 'gone');
    if (reason === 'timeout') this.#times.addWaitInVain(performance.now() - waiter.began);
    if (!patience.isPart) await this.#store.burn(claim).catch(() => this.#store.giveBack(claim, neededFor));
    const resources = resourcesOf(waiter.claim.keys);
    const after = this.#times.retryAfter(retryAfter);
    waiter.reject(new LockNotAcquiredError(reason, { resources, cause, retryAfter: after }));
  }

  #leave(waiter: Waiter, state: 'granted' | 'gone'): void {
    if (waiter.state !== 'waiting') return;
    waiter.state = state;
    waiter.forget();
    if (this.#newcomers.delete(waiter)) return;
    this.#byName.delete(waiter.name);
    const line = this.#lineOf(waiter);
    if (!line) return;
    line.waiters.delete(waiter);
    this.#closeIfEmpty(line, waiter.claim);
  }

  #closeIfEmpty(line: WaitingLine, claim: Claim): void {
    if (line.waiters.size > 0 || line.coming > 0) return;
    line.close();
    this.#lines.delete(ownerKey(claim));
    const [keys] = claim.keys;
    if (keys) this.#servers.unsubscribed(keys);
  }

  #lineOf(waiter: Waiter): WaitingLine | undefined {
    return this.#lines.get(ownerKey(waiter.claim));
  }
}

function ownerKey(claim: Claim): string {
  return claim.keys[0]?.owner ?? '';
}
