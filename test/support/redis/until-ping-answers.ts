import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';

interface Waiting {
  /** Milliseconds until the last problem is thrown. */
  within: number;
  /** Whether waiting on makes no sense after this problem. */
  isHopeless?: (problem: Error) => boolean;
  /** Asked on the same connection once PING has answered; what it throws is a problem like any other. */
  alsoCheck?: (redis: Redis) => Promise<void>;
}

const PAUSE_MS = 20;
// One silent connection must not use up the whole wait: a server behind it may come to life later.
const LONGEST_TRY_MS = 2_000;

/** Resolves when the server at `url` answers PING. */
export async function untilPingAnswers(url: string, waiting: Waiting): Promise<void> {
  const deadline = performance.now() + waiting.within;
  // What a server says of itself tells more than a last try for which no time was left.
  let said: Error | undefined;
  for (;;) {
    const left = Math.max(1, Math.ceil(deadline - performance.now()));
    const problem = await tryOnce(url, Math.min(left, LONGEST_TRY_MS), waiting.alsoCheck);
    if (!problem) return;
    if (!(problem instanceof NoAnswer)) said = problem;
    if (waiting.isHopeless?.(problem)) throw problem;
    if (performance.now() + PAUSE_MS >= deadline) throw said ?? problem;
    await pause(PAUSE_MS);
  }
}

class NoAnswer extends Error {}

async function tryOnce(
  url: string,
  timeout: number,
  alsoCheck: Waiting['alsoCheck'],
): Promise<Error | undefined> {
  const redis = new Redis(url, {
    lazyConnect: true,
    retryStrategy: () => null,
    enableReadyCheck: false,
    // Else a disconnect() may take two seconds, and keep the process alive as long.
    disconnectTimeout: 0,
  });
  // A failed command or connect() only says that the connection is closed; this says why.
  let reason: Error | undefined;
  redis.on('error', (error: Error) => (reason ??= error));
  const giveUp = setTimeout(() => {
    reason ??= new NoAnswer(`no answer for ${timeout} ms`);
    redis.disconnect();
  }, timeout);
  try {
    await redis.connect();
    await redis.ping();
    await alsoCheck?.(redis);
    return undefined;
  } catch (error) {
    return reason ?? (error as Error);
  } finally {
    clearTimeout(giveUp);
    redis.disconnect();
  }
}

/** An error in words. Where a host name has several addresses, the error has a code but no message. */
export function inWords(problem: Error & { code?: string }): string {
  return problem.message || problem.code || problem.name;
}
