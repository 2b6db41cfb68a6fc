import type { Redis } from 'ioredis';

/**
 * What is sent on a connection that is dead without knowing waits for ever: ioredis sets no time within which a server
 * has to answer, also while a connection gets ready. This makes a new one when there is no answer, as often as it takes.
 */
export class Silence {
  readonly #redis: Redis;
  readonly #longest: number;
  readonly #isAwaited: () => boolean;
  #timer: NodeJS.Timeout | undefined;
  #heardAt = 0;

  /**
   * @param longest ms without a word while something is awaited; it may take twice as long until that is noticed
   * @param isAwaited whether an answer is missing
   */
  constructor(redis: Redis, longest: number, isAwaited: () => boolean) {
    this.#redis = redis;
    this.#longest = longest;
    this.#isAwaited = isAwaited;
    redis.on('connect', () => this.listen());
    redis.on('ready', () => this.heard());
    redis.on('close', () => this.#end());
  }

  /** The server has said something. */
  heard(): void {
    this.#heardAt = performance.now();
  }

  /** Something is awaited. */
  listen(): void {
    this.#timer ??= setTimeout(
      (since: number) => this.#look(since),
      this.#longest,
      performance.now(),
    ).unref();
  }

  #look(since: number): void {
    // What was said while this process stood still is heard first.
    setImmediate(() => {
      this.#end();
      const { status } = this.#redis;
      if (status !== 'connect' && !(status === 'ready' && this.#isAwaited())) return;
      if (this.#heardAt <= since) this.#redis.disconnect(true);
      else this.listen();
    }).unref();
  }

  #end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}
