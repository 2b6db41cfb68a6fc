import type { Redis, RedisOptions } from 'ioredis';

/** Reconnects soon and for ever: whoever waits depends on it. */
const SUBSCRIBER = {
  lazyConnect: true,
  disconnectTimeout: 0,
  retryStrategy: (attempt: number) => Math.min(50 * attempt, 1_000),
  autoResubscribe: false,
  enableReadyCheck: false,
  maxRetriesPerRequest: null,
  commandTimeout: undefined,
  monitor: false,
} as const satisfies RedisOptions;

/**
 * Hears which waiters of this client got a lock: one channel, on a connection of its own that is made when somebody
 * waits for the first time. What was published while it was not subscribed is lost, and Redis then counts the client
 * as gone: `onSubscribed` is told after every new subscription, so that all who wait can ask again.
 */
export class WakeUpChannel {
  readonly #duplicate: (options: RedisOptions) => Redis;
  readonly #name: string;
  readonly #listener: { onToken(token: string): void; onSubscribed(): void; onError(error: Error): void };
  #redis: Redis | undefined;
  #subscribed = deferred();
  #isReady = false;

  constructor(
    duplicate: (options: RedisOptions) => Redis,
    name: string,
    listener: { onToken(token: string): void; onSubscribed(): void; onError(error: Error): void },
  ) {
    this.#duplicate = duplicate;
    this.#name = name;
    this.#listener = listener;
  }

  get isReady(): boolean {
    return this.#isReady;
  }

  /** Resolves when the channel is subscribed to; rejects when Redis refuses that. Waits as long as it takes. */
  ready(): Promise<void> {
    this.#redis ??= this.#connect();
    return this.#subscribed.promise;
  }

  close(): void {
    this.#redis?.disconnect();
  }

  #connect(): Redis {
    const redis = this.#duplicate(SUBSCRIBER);
    redis.on('error', (error: Error) => this.#listener.onError(error));
    redis.on('message', (_channel: string, token: string) => this.#listener.onToken(token));
    redis.on('ready', () => void this.#subscribe(redis));
    redis.on('close', () => {
      if (this.#redis !== undefined && this.#redis !== redis) return; // one that was given up
      this.#isReady = false;
      if (this.#subscribed.settled) this.#subscribed = deferred();
    });
    redis.connect().catch((error: Error) => this.#listener.onError(error)); // goes on trying by itself
    return redis;
  }

  async #subscribe(redis: Redis): Promise<void> {
    try {
      await redis.subscribe(this.#name);
    } catch (error) {
      if (redis.status !== 'ready') return; // the connection is gone: the next one subscribes
      this.#subscribed.reject(error);
      this.#redis = undefined;
      redis.disconnect();
      return;
    }
    this.#isReady = true;
    this.#subscribed.resolve();
    this.#listener.onSubscribed();
  }
}

interface Deferred {
  readonly promise: Promise<void>;
  settled: boolean;
  resolve(): void;
  reject(error: unknown): void;
}

function deferred(): Deferred {
  let settle: { resolve(): void; reject(error: unknown): void } | undefined;
  const promise = new Promise<void>((resolve, reject) => (settle = { resolve, reject }));
  promise.catch(() => undefined); // whoever waits for it hears of it; nobody has to
  return {
    promise,
    settled: false,
    resolve() {
      this.settled = true;
      settle?.resolve();
    },
    reject(error) {
      this.settled = true;
      settle?.reject(error);
    },
  };
}
