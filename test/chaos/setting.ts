/** What all work of a worker shares. */
import type { Redis } from 'ioredis';
import { LockError, LockTransactionError } from '../../lib/index.js';
import type { LockService } from '../../lib/index.js';
import type { Auditor } from './auditor.js';
import type { Outcome } from './history.js';
import type { Random } from './random.js';
import type { Recorder } from './recorder.js';

/** Where the data of a resource are. */
export function dataKeys(prefix: string, resource: string) {
  const name = (part: string) => `${prefix}:data:${resource}:${part}`;
  return { value: name('value'), entries: name('entries'), watched: name('watched') };
}

export interface Setting {
  readonly locks: LockService;
  readonly redis: Redis;
  /** Looks at what Redis has, and never by way of the network. */
  readonly auditor: Auditor;
  readonly prefix: string;
  readonly recorder: Recorder;
  readonly random: Random;
}

/** Records what the caller is told about a commit, and tells it that. */
export async function told(
  recorder: Recorder,
  call: string,
  commit: string,
  ended: Promise<unknown>,
): Promise<void> {
  try {
    await ended;
  } catch (error) {
    recorder.commit(call, commit, outcomeOf(error));
    throw error;
  }
  recorder.commit(call, commit, 'applied');
}

/** What a caller may conclude. An error of the work itself means that nothing of it was committed at its end. */
function outcomeOf(error: unknown): Outcome {
  if (!(error instanceof LockError)) return 'not applied';
  if (error.code === 'LOCK_OUTCOME_UNKNOWN') return 'unknown';
  if (error instanceof LockTransactionError && error.applied !== 'none') return 'unknown';
  return 'not applied';
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => (ms === 0 ? setImmediate(resolve) : setTimeout(resolve, ms)));
}
