import { Redis } from 'ioredis';
import { timeNow } from './history.js';

/** What Redis has of a lock. */
export interface LockSeen {
  readonly owner: string | null;
  /** It was looked at between these. */
  readonly from: number;
  readonly to: number;
  /** ms its lease had left. */
  readonly left: number;
}

/** Looks at locks in Redis itself, on a connection of its own. */
export class Auditor {
  readonly #redis: Redis;
  readonly #prefix: string;

  constructor(url: string, prefix: string) {
    this.#redis = new Redis(url, { disconnectTimeout: 0, maxRetriesPerRequest: 0 });
    this.#redis.on('error', () => undefined); // its commands reject as well
    this.#prefix = prefix;
  }

  /** @returns undefined when the primary cannot be asked: what a replica has may be old */
  async look(resource: string): Promise<LockSeen | undefined> {
    const key = `${this.#prefix}:{${resource}}`;
    const from = timeNow();
    const replies = await this.#redis
      .multi()
      .call('ROLE')
      .get(key)
      .pttl(key)
      .exec()
      .catch(() => null);
    const to = timeNow();
    const [role, owner, left] = replies?.map(([error, reply]) => (error ? undefined : reply)) ?? [];
    if (!Array.isArray(role) || left === undefined) return undefined;
    if (role[0] === 'master') return { owner: owner as string | null, from, to, left: Number(left) };
    if (this.#redis.status === 'ready') this.#redis.disconnect(true); // there is another primary by now
    return undefined;
  }

  close(): void {
    this.#redis.disconnect();
  }
}
