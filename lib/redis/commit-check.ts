import type { Redis } from 'ioredis';
import { LockUnavailableError } from '../errors/lock.errors.js';
import { sendCommit } from './commit-pipeline.js';
import { within } from './deadline.js';
import { triples } from './lock-keys.js';
import type { ResourceKeys } from './lock-keys.js';
import { RELEASE } from './lock-scripts.js';

/**
 * Tries a new commit connection out before anything depends on it: a commit under a lock that nobody holds has to
 * be refused. It is not where WATCH, MULTI or a script is denied, or where a proxy swallows one of them.
 *
 * @param keys of a resource that nobody uses, where the server has it
 * @throws LockUnavailableError with Redis' error as its cause
 */
export async function checkCommitConnection(
  redis: Redis,
  keyPrefix: string,
  keys: ResourceKeys,
  timeout: number,
  isCluster: boolean,
): Promise<void> {
  const request = {
    claim: { token: 'nobody:0:0', keys: [keys] },
    fencingToken: 0,
    alsoHeld: [],
    number: 1,
    place: 0,
    commands: [],
    keep: false,
  };
  const answer = await sendCommit(redis, request, timeout, (doubtful) => doubtful.disconnect());
  if (answer.outcome !== 'lost') {
    const cause = 'error' in answer ? answer.error : undefined;
    throw new LockUnavailableError(
      `Redis does not allow guarded commits: ${cause?.message ?? `a commit without a lock was ${answer.outcome}`}`,
      { cause },
    );
  }
  try {
    await within(timeout, redis.del(keys.fence));
    // Commits release by its hash: Redis has to know the script.
    const all = triples([keys]);
    await within(timeout, redis.eval(RELEASE.text, all.length, ...all, request.claim.token, ''));
    const channel = `${redis.options.keyPrefix ?? ''}${keyPrefix}:wake:nobody`;
    await within(timeout, redis.publish(channel, ''));
    await within(timeout, redis.pubsub('NUMSUB', channel));
    if (isCluster) await within(timeout, checkSharded(redis, `${keyPrefix}:wake:{${keys.tag}}:nobody`));
  } catch (error) {
    throw new LockUnavailableError(`Redis does not allow what locks need: ${String(error)}`, {
      cause: error,
    });
  }
}

/** @throws what Redis says, unless it is older than 7 and has no such channels */
async function checkSharded(redis: Redis, channel: string): Promise<void> {
  try {
    await redis.spublish(channel, ''); // whose name ioredis treats as a key
    await redis.pubsub('SHARDNUMSUB', channel);
  } catch (error) {
    if (!String(error).includes('unknown command')) throw error;
  }
}
