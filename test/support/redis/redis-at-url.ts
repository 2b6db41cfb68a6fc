import type { ProvidedRedis } from './provide-redis.js';
import { inWords, untilPingAnswers } from './until-ping-answers.js';

// Redis says so at once and will not change its mind.
const REFUSED = /^(WRONGPASS|NOAUTH|NOPERM)|invalid password/i;

/** Uses a server that someone else runs, and leaves it running. */
export async function useRedisAtUrl(url: string, within: number): Promise<ProvidedRedis> {
  const shown = withoutSecrets(url);
  try {
    await untilPingAnswers(url, { within, isHopeless: (problem) => REFUSED.test(problem.message) });
  } catch (problem) {
    // The problem itself is not passed on as a cause: a refused AUTH carries the password as its argument.
    throw new Error(`REDIS_URL (${shown}) names no server that answers PING: ${inWords(problem as Error)}`);
  }
  return { url, source: 'url', stop: () => Promise.resolve() };
}

/** The part of the URL that can be shown: no user, no password, no options (ioredis takes a password there too). */
function withoutSecrets(url: string): string {
  // Nor is a text that cannot be taken apart shown: who knows what is in it.
  if (!URL.canParse(url)) throw new Error('REDIS_URL is not a URL; it must be like redis://host:6379');
  const { protocol, host, pathname } = new URL(url);
  if (protocol !== 'redis:' && protocol !== 'rediss:') {
    throw new Error(`REDIS_URL must begin with redis:// or rediss://, not with ${protocol}`);
  }
  return `${protocol}//${host}${pathname}`;
}
