import { LockLostError, LockNotAcquiredError } from '../errors/lock.errors.js';
import { Alarm } from '../redis/deadline.js';
import type { AcquireOptions } from '../redis-lock.options.js';
import type { Grant } from '../lock/grant.js';
import type { Visit } from './visits.js';

/**
 * Waits for the turn in each scope, one after the other: for as long as the call is ready to wait for a lock at all (a
 * call that is not takes its turn all the same), and while the locks it is about to use are held.
 *
 * @throws LockNotAcquiredError timeout or aborted
 * @throws LockLostError
 */
export async function takeTurns(
  visits: readonly Visit[],
  grants: readonly Grant[],
  { wait = 0, signal }: AcquireOptions,
): Promise<void> {
  if (visits.length === 0) return;
  const resources = grants.flatMap(({ lease }) => lease.resources);
  let giveUp: (error: Error) => void = () => undefined;
  const givenUp = new Promise<never>((_resolve, reject) => (giveUp = reject));
  givenUp.catch(() => undefined); // heard of below, if it comes to that

  const deadline = new Alarm(() => giveUp(new LockNotAcquiredError('timeout', { resources })));
  if (wait > 0 && wait < Infinity) deadline.set(performance.now() + wait);
  const onAbort = () => giveUp(new LockNotAcquiredError('aborted', { resources, cause: signal?.reason }));
  signal?.addEventListener('abort', onAbort);
  const onLoss = (reason: string) => giveUp(new LockLostError({ resources, reason }));
  for (const { lease } of grants) lease.onLoss(onLoss);
  if (signal?.aborted) onAbort();
  try {
    // In line for the next one only with the turn in the one before: otherwise two could wait for each other.
    for (const visit of visits) await Promise.race([visit.takeTurn(), givenUp]);
  } finally {
    deadline.clear();
    signal?.removeEventListener('abort', onAbort);
    for (const { lease } of grants) lease.offLoss(onLoss);
  }
}
