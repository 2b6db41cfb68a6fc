import {
  LockConflictError,
  LockLostError,
  LockOutcomeUnknownError,
  LockTransactionError,
  LockUnavailableError,
} from '../errors/lock.errors.js';
import type { LeaseKeeper } from '../lock/lease-keeper.js';
import type { CommitRequest } from '../redis/commit-pipeline.js';
import { pause } from '../redis/deadline.js';
import { elapsedSince, now } from '../redis/instant.js';
import type { LockStore } from '../redis/lock-store.js';
import type { Servers } from '../redis/servers.js';
import { assertReplies, refusal, unguarded, unsent } from './commit-errors.js';
import { CommitPlaces } from './commit-places.js';
import { CommitSender, firstOf, MAX_TRIES } from './commit-sender.js';
import type { CommitOrder, SendAnswer } from './commit-sender.js';
import { WatchEndedError } from './watch.js';

/** ms between two tries to settle. */
const PAUSE = 50;

export interface Committed {
  /** Undefined when the commit is known to be applied, but its replies are lost. */
  readonly replies: unknown[] | undefined;
}

/**
 * Applies queued commands by MULTI/EXEC only if the lock is held in that instant, and finds out what happened when
 * the answer is missing.
 */
export class GuardedCommit {
  readonly #store: LockStore;
  readonly #servers: Servers;
  readonly #keeper: LeaseKeeper;
  readonly #sender: CommitSender;
  readonly #places = new CommitPlaces();

  constructor(store: LockStore, servers: Servers, keeper: LeaseKeeper, commandTimeout: number) {
    this.#store = store;
    this.#servers = servers;
    this.#keeper = keeper;
    this.#sender = new CommitSender(store, servers, keeper, commandTimeout);
  }

  /**
   * @throws LockLostError nothing was applied
   * @throws LockConflictError nothing was applied: a watched key changed, or may have
   * @throws LockTransactionError Redis refused the transaction, or commands failed in it
   * @throws LockUnavailableError nothing was applied, and the lock is still what it was
   * @throws LockOutcomeUnknownError
   */
  async commit(order: CommitOrder): Promise<Committed> {
    const { lease, watch } = order;
    const leases = [lease, ...order.alsoHeld];
    for (const each of leases) each.relyingCommits += 1;
    // One commit of a lease after the other: only the last one is recorded.
    const before = lease.committing;
    let end = () => undefined as void;
    const ended = new Promise<void>((resolve) => (end = resolve));
    lease.committing = ended;
    try {
      if (before) await before;
      for (const each of leases) {
        if (each.heard) await this.#keeper.untilHeard(each);
        // Commits that follow each other at once leave no other time for it.
        const renewing = this.#keeper.upToDate(each);
        if (renewing) await renewing;
      }
      return await this.#commit(order);
    } finally {
      if (lease.committing === ended) lease.committing = undefined;
      end();
      for (const each of leases) each.relyingCommits -= 1;
      void watch?.end('watching'); // unless that has ended
    }
  }

  async #commit(order: CommitOrder): Promise<Committed> {
    const { lease, alsoHeld, commands, keep } = order;
    const { fence } = firstOf(lease);
    const place = this.#places.take(fence);
    try {
      const fencingToken = lease.fencingTokens[0] ?? 0;
      const number = ++lease.commits;
      const request = { claim: lease, fencingToken, alsoHeld, number, place, commands, keep };
      this.#assertOneSlot(request);
      const answer = await this.#sender.send(order, request);
      if (answer.outcome === 'unanswered') return await this.#settle(order, request, answer.error);
      return this.#conclude(order, answer);
    } finally {
      this.#places.free(fence, place);
    }
  }

  /** @throws LockTransactionError: in a cluster, a transaction has one server, and one slot there */
  #assertOneSlot({ claim, alsoHeld }: CommitRequest): void {
    const first = firstOf(claim);
    const slot = this.#servers.slotOf(first.owner);
    if (slot === undefined) return;
    for (const other of [claim, ...alsoHeld].flatMap(({ keys }) => keys)) {
      if (this.#servers.slotOf(other.owner) === slot) continue;
      throw new LockTransactionError(
        `The locks on "${first.resource}" and "${other.resource}" are in different slots of the cluster, where no ` +
          'transaction can have both; give them a `slot` in common. Nothing was applied',
        { applied: 'none', resources: [first.resource, other.resource] },
      );
    }
  }

  #conclude(
    { lease, commands, keep, watch }: CommitOrder,
    answer: Exclude<SendAnswer, { outcome: 'unanswered' }>,
  ): Committed {
    const { resources } = lease;
    switch (answer.outcome) {
      case 'applied':
        // Where the release failed inside EXEC, its script being unknown after SCRIPT FLUSH, the lock is still there,
        // and the caller's release takes care of it.
        if (!keep && answer.handedOver) this.#keeper.markReleased(lease);
        return { replies: assertReplies(answer.replies, commands, resources) };
      case 'lost':
        this.#keeper.lose(lease, 'it was not held any more at its commit');
        throw new LockLostError({ resources, reason: 'it was not held any more at its commit' });
      case 'changed':
        if (watch) throw new LockConflictError('A watched key was changed before the commit', { resources });
        throw new LockUnavailableError(
          `The commit was refused ${MAX_TRIES} times: the lock's keys keep changing`,
          { resources },
        );
      case 'unwatched':
        throw new WatchEndedError(
          `Redis could not take the commit, and then did not know any more what was watched: ${answer.error.message}`,
          { resources, cause: answer.error },
        );
      case 'unsent':
        throw unsent(answer.error, resources);
      case 'refused':
        throw refusal(answer, commands, resources);
      case 'unguarded':
        this.#store.onUnclear(lease); // it may have been handed over there
        throw unguarded(answer, commands, resources);
    }
  }

  /**
   * Finds out about a commit whose answer is missing, by taking the lock away from it: what has not been applied
   * by then is refused by its guard whenever it arrives. Goes on until the lease's end, or the service's.
   */
  async #settle({ lease, keep }: CommitOrder, request: CommitRequest, cause: Error): Promise<Committed> {
    const { resources, remaining } = lease;
    const since = now();
    // Before Redis can hear of it: from then on somebody else may have the lock. One that its last commit gives up
    // counts on nothing any more (see isLeaving), and is lost only if that commit was not applied.
    if (keep) {
      this.#keeper.tellLost(
        lease,
        'a commit was cut off, and the lock is given up to find out what became of it',
      );
    }
    for (;;) {
      const verdict = await this.#store.burn(lease, request).catch(() => undefined); // asked again below
      if (verdict === 'committed') {
        this.#store.onUnclear(lease); // its hand-over was in the lost answer
        this.#keeper.markReleased(lease);
        return { replies: undefined };
      }
      if (verdict === 'gone') {
        const reason = 'its commit was cut off, and the lock was given up so that it can never be applied';
        this.#keeper.tellLost(lease, reason);
        throw new LockLostError({ resources, reason, cause });
      }
      const left = remaining - elapsedSince(since);
      if (verdict === 'unknown' || left <= 0 || this.#keeper.isClosed) {
        if (keep) this.#store.giveBack(lease, lease.ttl);
        else this.#keeper.lose(lease, 'its commit was cut off');
        throw new LockOutcomeUnknownError('Whether the commit was applied cannot be told', {
          resources,
          cause,
        });
      }
      await pause(Math.min(PAUSE, left));
    }
  }
}
