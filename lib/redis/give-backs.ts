import { setMaxListeners } from 'node:events';
import { pause, within } from './deadline.js';
import type { Claim } from './lock-keys.js';
import type { AcquireReply } from './lock-replies.js';
import { NotSentError } from './script-call.js';
import type { Runner } from './script-runner.js';

/** ms between two tries to give a grant back, doubled from the first to the second. */
const FIRST_PAUSE = 50;
const LAST_PAUSE = 1_000;

/** Grants and places that nobody will use, on their way back to Redis. */
export class GiveBacks {
  readonly #runner: Runner;
  readonly #commandTimeout: number;
  readonly #burn: (claim: Claim) => Promise<unknown>;
  readonly #closing = new AbortController();
  readonly #running = new Set<Promise<void>>();

  /** @param burn takes everything back that the claim has; rejects when Redis does not answer */
  constructor(runner: Runner, commandTimeout: number, burn: (claim: Claim) => Promise<unknown>) {
    this.#runner = runner;
    this.#commandTimeout = commandTimeout;
    this.#burn = burn;
    setMaxListeners(0, this.#closing.signal); // one for each of them
  }

  /**
   * As soon as Redis answers, and no longer than it can last.
   *
   * @param lasts ms
   * @param reply of an acquire still under way; nothing is done when it turns out that there is nothing to undo.
   */
  begin(claim: Claim, lasts: number, reply?: Promise<AcquireReply>): void {
    const work = this.#giveBack(claim, lasts, reply).finally(() => this.#running.delete(work));
    this.#running.add(work);
  }

  /** Lets those that are under way have one more round trip, then stops them. */
  async close(): Promise<void> {
    const left = Promise.all(this.#running);
    await within(this.#commandTimeout, left).catch(() => undefined); // their leases end by themselves
    this.#closing.abort();
  }

  async #giveBack(claim: Claim, lasts: number, reply?: Promise<AcquireReply>): Promise<void> {
    const nothing = await reply?.then(
      (answer) => !answer.granted && answer.ticket === undefined,
      (error: unknown) => error instanceof NotSentError,
    );
    if (nothing) return;
    const end = performance.now() + lasts;
    for (let delay = FIRST_PAUSE; performance.now() < end; delay = Math.min(2 * delay, LAST_PAUSE)) {
      // In an outage only the connection is waited for, not one try after the other.
      const ready = this.#runner.ready();
      if (ready) await Promise.race([ready, pause(end - performance.now(), this.#closing.signal)]);
      if (this.#closing.signal.aborted) return;
      try {
        await this.#burn(claim);
        return;
      } catch {
        // Nobody is waiting for this: the next try, or the end of what it is about, mends it.
        await pause(delay, this.#closing.signal);
      }
    }
  }
}
