import type { Redis } from 'ioredis';
import { shown } from './redis-client.js';

/**
 * Why a connection is down, and whether to wait for it is of use. Made before its owner listens to the connection: at an
 * event, the owner finds here what that event says.
 */
export class Outage {
  readonly #grace: number;
  #since: number | undefined;
  #wasThere = false;
  #lastWord: Error | undefined;

  /** @param grace ms in which a connection that was there may come back: of a server that is restarted, for example */
  constructor(redis: Redis, grace: number) {
    this.#grace = grace;
    redis.on('error', (error: Error) => {
      this.#lastWord = shown(error);
      this.#since ??= performance.now();
    });
    redis.on('close', () => (this.#since ??= performance.now()));
    redis.on('ready', () => {
      this.#wasThere = true;
      this.#since = undefined;
      this.#lastWord = undefined;
    });
  }

  /** What Redis or the socket said last since the connection was there. */
  get lastWord(): Error | undefined {
    return this.#lastWord;
  }

  /** Why to wait is of no use: it was refused, not only lost a moment ago. Undefined where it may be there soon. */
  get refusal(): Error | undefined {
    const isFresh = this.#wasThere && performance.now() - (this.#since ?? Infinity) < this.#grace;
    return isFresh ? undefined : this.#lastWord;
  }
}
