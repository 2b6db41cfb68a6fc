import { LockLostError, LockNotAcquiredError } from '../errors/lock.errors.js';
import { Alarm } from '../redis/deadline.js';
import type { AbortListeners } from '../lock/abort-listeners.js';
import type { Grant } from '../lock/grant.js';
import type { LockScope } from './lock-scope.js';
import type { Visit } from './visits.js';

const NOT_RELEASED =
  'Code inside of the same withLock() has the lock by acquire() or tryAcquire(), and has not released it. If that is ' +
  'the calling code itself, it waited for itself: release the lock first, or use withLock() in place of acquire()';

/** How long a call waits for its turn. */
export interface TurnPatience {
  /** ms; 0 waits for work to end however long that takes, as work does end. */
  readonly wait?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly aborts: AbortListeners;
  /** ms to wait, when `wait` is 0, for a lock that was acquired: the calling code itself may have to release it. */
  readonly forAcquired: number;
}

/**
 * Waits for the turn in each scope, one after the other: for as long as the call is ready to wait for a lock at all (a
 * call that is not takes its turn all the same), and while the locks it is about to use are held.
 *
 * @param unwanted aborted when the lock that is acquired can be of no use any more
 * @throws LockNotAcquiredError timeout or aborted
 * @throws LockLostError
 */
export async function takeTurns(
  visits: readonly Visit[],
  grants: readonly Grant[],
  { wait = 0, signal, aborts, forAcquired }: TurnPatience,
  unwanted?: AbortSignal,
): Promise<void> {
  if (visits.length === 0) return;
  const resources = grants.flatMap(({ lease }) => lease.resources);
  let giveUp: (error: Error) => void = () => undefined;
  const givenUp = new Promise<never>((_resolve, reject) => (giveUp = reject));
  givenUp.catch(() => undefined); // heard of below, if it comes to that

  let cause: Error | undefined;
  const deadline = new Alarm(() => giveUp(new LockNotAcquiredError('timeout', { resources, cause })));
  if (wait > 0 && wait < Infinity) deadline.set(performance.now() + wait);
  const onAbort = () => giveUp(new LockNotAcquiredError('aborted', { resources, cause: signal?.reason }));
  if (signal) aborts.add(signal, onAbort);
  const onLoss = (reason: string) => giveUp(new LockLostError({ resources, reason }));
  for (const { lease } of grants) lease.onLoss(onLoss);
  const onUnwanted = () => onLoss('the work that has it ended before this call had its turn');
  unwanted?.addEventListener('abort', onUnwanted);
  if (signal?.aborted) onAbort();
  if (unwanted?.aborted) onUnwanted();
  try {
    // In line for the next one only with the turn in the one before: otherwise two could wait for each other.
    for (const visit of visits) {
      const { begins, isBehindAcquired } = visit.takeTurn();
      if (isBehindAcquired) {
        cause = new Error(NOT_RELEASED);
        if (wait === 0) deadline.set(performance.now() + forAcquired);
      }
      await Promise.race([givenUp, begins]);
      cause = undefined;
      if (wait === 0) deadline.clear();
    }
  } finally {
    deadline.clear();
    if (signal) aborts.delete(signal, onAbort);
    unwanted?.removeEventListener('abort', onUnwanted);
    for (const { lease } of grants) lease.offLoss(onLoss);
  }
}

/**
 * The turn of a lock that is acquired inside of scopes that have it, or a part of it: until its release, or the end of
 * the work in one of these scopes.
 */
export class AcquiredTurn {
  readonly #ended = new AbortController();
  readonly #visits: readonly Visit[];
  readonly #grants: readonly Grant[];

  constructor(path: readonly LockScope[], grants: readonly Grant[]) {
    this.#grants = grants;
    this.#visits = path.map((scope) => scope.visits.begin(this.#ended));
    this.ended.addEventListener('abort', () => this.leave());
  }

  /** Aborted when the work in one of the scopes has ended before the release. */
  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  /**
   * @throws LockNotAcquiredError timeout or aborted
   * @throws LockLostError when a scope has lost its lock, or its work has ended
   */
  async take(patience: TurnPatience): Promise<void> {
    await takeTurns(this.#visits, this.#grants, patience, this.ended);
    this.#assertHeld();
  }

  /**
   * For a call that does not wait, where nobody else has a turn: takes all of them before anybody else can.
   *
   * @throws LockLostError
   */
  takeNow(): void {
    if (this.ended.aborted) {
      const resources = this.#grants.flatMap(({ lease }) => lease.resources);
      throw new LockLostError({ resources, reason: 'the work that has it has ended' });
    }
    for (const visit of this.#visits) visit.takeTurn();
    this.#assertHeld();
  }

  leave(): void {
    for (const visit of this.#visits) visit.leave();
  }

  #assertHeld(): void {
    for (const { lease } of this.#grants) {
      if (lease.remaining > 0) continue;
      throw new LockLostError({ resources: lease.resources, reason: 'the scope it was to join has lost it' });
    }
  }
}
