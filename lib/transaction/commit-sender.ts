import type { Redis } from 'ioredis';
import { LockTransactionError, LockUnavailableError } from '../errors/lock.errors.js';
import type { LeaseKeeper } from '../lock/lease-keeper.js';
import type { Lease } from '../lock/lease.js';
import { isBig, needsTwoSteps, sendCommit } from '../redis/commit-pipeline.js';
import type { CommitAnswer, CommitRequest } from '../redis/commit-pipeline.js';
import { pause } from '../redis/deadline.js';
import { now } from '../redis/instant.js';
import type { Claim, ResourceKeys } from '../redis/lock-keys.js';
import type { LockStore } from '../redis/lock-store.js';
import { isReply } from '../redis/redis-client.js';
import type { Servers } from '../redis/servers.js';
import { mayPassLater, REPLACED } from './commit-errors.js';
import type { QueuedCommand } from './lock-transaction.js';
import { patienceFor } from './watch.js';
import type { Watch } from './watch.js';

/** Tries for a commit that Redis refused although the lock is held: something touched its keys on the way. */
export const MAX_TRIES = 5;
/** ms between two tries where Redis could not take it. */
const PAUSE = 50;

/** What is to be committed, and under which leases. */
export interface CommitOrder {
  readonly lease: Lease;
  /** Leases of outer scopes that the work relied on: they have to be held as well. */
  readonly alsoHeld: readonly Lease[];
  readonly commands: readonly QueuedCommand[];
  /** Keep the lock; otherwise the same EXEC gives it up. */
  readonly keep: boolean;
  /** Keys it depends on; the commit ends the watch. */
  readonly watch?: Watch | undefined;
}

/** What Redis said to it; or: Redis could not take the commit, can take one by now, and does not know any more what was watched. */
export type SendAnswer = CommitAnswer | { readonly outcome: 'unwatched'; readonly error: Error };

/** Sends commits to where their locks are, as often as that makes sense while nothing is applied. */
export class CommitSender {
  readonly #store: LockStore;
  readonly #servers: Servers;
  readonly #keeper: LeaseKeeper;
  readonly #commandTimeout: number;

  constructor(store: LockStore, servers: Servers, keeper: LeaseKeeper, commandTimeout: number) {
    this.#store = store;
    this.#servers = servers;
    this.#keeper = keeper;
    this.#commandTimeout = commandTimeout;
  }

  /** @param request what the order asks for, under a number of its own */
  send(order: CommitOrder, request: CommitRequest): Promise<SendAnswer> {
    return order.watch ? this.#sendWatching(order, order.watch, request) : this.#send(order, request);
  }

  /** Sends it; again, for as long as one command may take, while Redis could not take it and the lock is still held. */
  async #send(order: CommitOrder, request: CommitRequest): Promise<CommitAnswer> {
    const twoSteps = needsTwoSteps(request, this.#servers.clientPrefix);
    const goesAlone = isBig(request);
    const until = performance.now() + this.#commandTimeout;
    for (let tries = 1; ; tries += 1) {
      const answer = await this.#sendUnwatched(order, request, twoSteps, goesAlone);
      if (answer.outcome === 'changed') {
        if (tries === MAX_TRIES) return answer;
      } else {
        if (!mayPassLater(answer) || performance.now() + PAUSE > until) return answer;
        await pause(Math.min(PAUSE, order.lease.remaining));
        await this.#servers.lookAgain();
      }
    }
  }

  async #sendUnwatched(
    order: CommitOrder,
    request: CommitRequest,
    twoSteps: boolean,
    goesAlone: boolean,
  ): Promise<CommitAnswer> {
    try {
      const { commits, watches } = await this.#servers.of(firstOf(order.lease));
      const send = async (redis: Redis, drop: (redis: Redis) => void, retire: (redis: Redis) => void) => {
        const answer = await this.#sendOnce(redis, order, request, twoSteps, drop);
        if (answer.outcome === 'refused' && REPLACED.test(answer.error.message)) retire(redis);
        return answer;
      };
      if (goesAlone) {
        const redis = await watches.takeAlone(patienceFor(order.lease));
        try {
          return await send(redis, disconnect, (demoted) => watches.drop(demoted));
        } finally {
          watches.giveBack(redis); // not one that is disconnected
        }
      }
      const share = (redis: Redis) =>
        send(
          redis,
          (doubtful) => commits.drop(doubtful),
          (demoted) => commits.retire(demoted),
        );
      return await (twoSteps ? commits.alone(share) : commits.share(share));
    } catch (error) {
      return notReached(error);
    }
  }

  /**
   * What was watched is gone after the first time. So when Redis could not take the commit, this waits until it can,
   * as long as an unwatched one would be sent again, and leaves it to the work to run again.
   */
  async #sendWatching(order: CommitOrder, watch: Watch, request: CommitRequest): Promise<SendAnswer> {
    let state: 'clean' | 'doubtful' = 'doubtful';
    let answer: CommitAnswer;
    try {
      answer = await this.#sendOnce(await watch.connection(), order, request, true, disconnect);
      if (endsCleanly(answer)) state = 'clean';
    } finally {
      void watch.end(state);
    }
    // The connection was lost before the transaction was sent: what it watched may have changed.
    if (answer.outcome === 'refused' && !isReply(answer.error)) answer = { outcome: 'changed' };
    if (answer.outcome === 'changed' && !(await this.#areHeld(order))) return { outcome: 'lost' };
    if (answer.outcome !== 'refused' || !mayPassLater(answer)) return answer;
    await pause(Math.min(PAUSE, order.lease.remaining));
    await this.#servers.lookAgain();
    // It changes nothing.
    const trial = { commands: [], keep: true };
    const number = ++order.lease.commits;
    const tried = await this.#send(
      { ...order, ...trial, watch: undefined },
      { ...request, ...trial, number },
    );
    return tried.outcome === 'applied' ? { outcome: 'unwatched', error: answer.error } : tried;
  }

  /** Whether Redis still has the lock, and those that it relies on: if not, that is why EXEC was refused. */
  async #areHeld({ lease, alsoHeld }: CommitOrder): Promise<boolean> {
    const holders = [lease, ...alsoHeld].flatMap(({ token, keys }) =>
      keys.map(async (each) => (await this.#store.inspect(each))?.holder === token),
    );
    const held = await Promise.all(holders).catch(() => []); // the work runs again, and its commit finds out
    return held.every(Boolean);
  }

  async #sendOnce(
    redis: Redis,
    { lease, alsoHeld, keep }: CommitOrder,
    request: CommitRequest,
    twoSteps: boolean,
    drop: (doubtful: Redis) => void,
  ): Promise<CommitAnswer> {
    const leases = [lease, ...alsoHeld];
    if (leases.some(({ remaining }) => remaining <= 0)) return { outcome: 'lost' };
    // A renewal between WATCH and EXEC would make Redis refuse the commit.
    for (const each of leases) this.#keeper.pauseRenewal(each);
    lease.isLeaving = !keep;
    let answer: CommitAnswer | undefined;
    try {
      const sent = now();
      answer = await sendCommit(redis, request, this.#commandTimeout, drop, twoSteps);
      if (answer.outcome === 'applied') this.#store.reportHandOvers(lease, answer.handedOver ?? [], sent);
      return answer;
    } finally {
      if (answer === undefined || isWithoutEffect(answer)) lease.isLeaving = false;
      for (const each of leases) this.#keeper.resumeRenewal(each);
    }
  }
}

export function firstOf({ keys }: Claim): ResourceKeys {
  const [first] = keys;
  if (first === undefined) throw new LockTransactionError('A commit needs a lock', { applied: 'none' });
  return first;
}

/** EXEC was answered, or the connection is closed already; and where it leads, commits can be written. */
function endsCleanly(answer: CommitAnswer): boolean {
  if (answer.outcome === 'refused') return isReply(answer.error) && !REPLACED.test(answer.error.message);
  return answer.outcome !== 'unanswered' && answer.outcome !== 'unsent';
}

function disconnect(redis: Redis): void {
  redis.disconnect(); // a connection that nobody shares
}

/** The lock is what it was. */
function isWithoutEffect({ outcome }: CommitAnswer): boolean {
  return outcome === 'lost' || outcome === 'changed' || outcome === 'refused' || outcome === 'unsent';
}

/**
 * No connection is an answer too: nothing was applied.
 *
 * @throws what is no word of Redis or its connection
 */
function notReached(error: unknown): CommitAnswer {
  if (error instanceof LockUnavailableError && error.cause instanceof Error) {
    return { outcome: 'refused', error: error.cause, failures: [] };
  }
  throw error;
}
