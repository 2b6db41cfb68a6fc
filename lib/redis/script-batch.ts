/** Claims in one script call: more would hold up Redis for others. */
const MAX_CLAIMS = 100;

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
  readonly #send: (keys: readonly string[], argv: readonly (string | number)[]) => Promise<unknown>;
  #requests: Request[] = [];

  constructor(send: (keys: readonly string[], argv: readonly (string | number)[]) => Promise<unknown>) {
    this.#send = send;
  }

  add(keys: readonly string[], argv: readonly (string | number)[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#requests.push({ keys, argv, resolve, reject }) > 1) return;
      // After all that is going on now, answers that are being passed on included.
      process.nextTick(() => {
        const requests = this.#requests;
        this.#requests = [];
        for (let first = 0; first < requests.length; first += MAX_CLAIMS) {
          void this.#sendAll(requests.slice(first, first + MAX_CLAIMS));
        }
      });
    });
  }

  /** Never rejects: those who asked are told. */
  async #sendAll(requests: readonly Request[]): Promise<void> {
    const keys: string[] = [];
    const argv: (string | number)[] = [];
    for (const request of requests) {
      for (const key of request.keys) keys.push(key);
      argv.push(request.keys.length, ...request.argv);
    }
    try {
      const replies = (await this.#send(keys, argv)) as unknown[];
      requests.forEach(({ resolve, reject }, i) => {
        const reply = replies[i];
        if (reply instanceof Error) reject(reply);
        else resolve(reply);
      });
    } catch (error) {
      for (const { reject } of requests) reject(error);
    }
  }
}
