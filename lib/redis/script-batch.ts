import { isReply } from './redis-client.js';

/** Claims in one script call. A full one is sent at once, so that Redis is at work on it while others come together. */
const MAX_CLAIMS = 16;
/** Of a claim on one resource; one on several goes alone. */
export const KEYS_OF_ONE = 3;

type Send = (keys: readonly string[], argv: readonly (string | number)[]) => Promise<unknown>;

interface Request {
  readonly keys: readonly string[];
  readonly argv: readonly (string | number)[];
  readonly resolve: (reply: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Requests of one tick to a script that answers for many claims: they go to Redis in one call, and each gets its own
 * reply or error.
 */
export class ScriptBatch {
  readonly #send: Send;
  readonly #requests: Request[] = [];
  #isSent = false;

  constructor(send: Send) {
    this.#send = send;
    process.nextTick(() => this.flush()); // after the answers that are being passed on now
  }

  /** Whether it takes no more. */
  get isSent(): boolean {
    return this.#isSent;
  }

  add(keys: readonly string[], argv: readonly (string | number)[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const waiting = this.#requests.push({ keys, argv, resolve, reject });
      if (waiting === MAX_CLAIMS || keys.length !== KEYS_OF_ONE) this.flush();
    });
  }

  flush(): void {
    if (this.#isSent) return;
    this.#isSent = true;
    if (this.#requests.length > 0) void this.#sendAll(this.#requests);
  }

  /** Never rejects: those who asked are told. */
  async #sendAll(requests: readonly Request[]): Promise<void> {
    const keys: string[] = [];
    const argv: (string | number)[] = [];
    for (const request of requests) {
      for (const key of request.keys) keys.push(key);
      for (const arg of request.argv) argv.push(arg);
    }
    try {
      const replies = (await this.#send(keys, argv)) as unknown[];
      requests.forEach(({ resolve, reject }, i) => {
        const reply = replies[i];
        if (reply instanceof Error) reject(reply);
        else resolve(reply);
      });
    } catch (error) {
      // The call was refused before it ran, be it for the keys of one of them: each hears its own.
      const isRefused = error instanceof Error && isReply(error) && requests.length > 1;
      for (const request of requests) {
        if (isRefused) void this.#sendAll([request]);
        else request.reject(error);
      }
    }
  }
}
