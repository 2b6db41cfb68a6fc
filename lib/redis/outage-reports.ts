import { shown } from './redis-client.js';
import type { RedisClient } from './redis-client.js';

export interface OutageListener {
  /** Once for each outage, not for each attempt to connect. */
  onOutage(error: Error): void;
  /** Once, when every connection that had failed is there again. */
  onRecovery(): void;
}

/** Reports outages of all connections of one service together. */
export class OutageReports {
  readonly #listener: OutageListener;
  readonly #down = new Set<RedisClient>();
  #isReported = false;

  constructor(listener: OutageListener) {
    this.#listener = listener;
  }

  /** Until the connection ends. */
  watch(redis: RedisClient): void {
    redis.on('error', (error: Error) => {
      this.#down.add(redis);
      if (!this.#isReported) this.#listener.onOutage(shown(error));
      this.#isReported = true;
    });
    redis.on('ready', () => {
      this.#down.delete(redis);
      if (this.#isReported && this.#down.size === 0) this.#listener.onRecovery();
      if (this.#down.size === 0) this.#isReported = false;
    });
    redis.on('end', () => this.#down.delete(redis)); // which is no recovery
  }
}
