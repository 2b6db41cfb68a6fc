import { Alarm } from '../redis/deadline.js';
import { LONGEST_PLACE } from './waiter.js';
import type { Waiter } from './waiter.js';

/** ms after the end of the holder's lease until the first waiter asks. */
const AFTER_LEASE = 1;

/** Names of a run that are kept; who comes after them is found out when they have had their turn. */
const LONGEST_RUN = 64;

/** The local waiters of one resource, in the order they came; the first one asks when the holder's lease ends. */
export class WaitingLine {
  readonly waiters = new Set<Waiter>();
  /** How many are about to get in line. */
  coming = 0;
  /** Names of those that come before all other clients' waiters, the first one first; also of some that wait no more. */
  run: string[] = [];
  readonly #ask: (waiter: Waiter) => Promise<void> | undefined;
  #alarm: Alarm | undefined;
  /** When the holder's lease ends, as far as is known here. */
  #leaseEndsAt = Infinity;
  /** When the alarm goes off; it may be early, and is then set again. */
  #alarmAt = Infinity;
  /** Whether all in line are asking, and whether they have to once more. */
  #rechecking: 'no' | 'yes' | 'again' = 'no';

  constructor(ask: (waiter: Waiter) => Promise<void> | undefined) {
    this.#ask = ask;
  }

  /** The holder's lease ends in so many ms, as far as is known. An alarm that is early is left to be early. */
  leaseEndsIn(ms: number): void {
    if (this.waiters.size === 0) return;
    // However long the lease: the place must not end before somebody asks again.
    this.#leaseEndsAt = performance.now() + Math.min(ms, LONGEST_PLACE / 2);
    if (this.#alarmAt <= this.#leaseEndsAt) return;
    this.#alarmAt = this.#leaseEndsAt + AFTER_LEASE;
    this.#alarm ??= new Alarm(() => this.#wakeFirst());
    this.#alarm.set(this.#alarmAt);
  }

  /** A waiter has a new place, right after another one in line or, 'ours', after a holder of this client. */
  comesAfter(before: string, name: string): void {
    if (before === 'ours') this.run = [name];
    else if (this.run.at(-1) === before && this.run.length < LONGEST_RUN) this.run.push(name);
  }

  /** The first one of the run that still waits. */
  nextOfRun(isWaiting: (name: string) => boolean): string | undefined {
    const first = this.run.findIndex(isWaiting);
    this.run.splice(0, first === -1 ? this.run.length : first);
    return this.run[0];
  }

  /** All in line ask again; once more after that, however many reasons there are meanwhile. */
  async recheck(): Promise<void> {
    if (this.#rechecking !== 'no') {
      this.#rechecking = 'again';
      return;
    }
    do {
      this.#rechecking = 'yes';
      await Promise.all([...this.waiters].map((waiter) => this.#ask(waiter)));
    } while (this.#isToRecheckAgain() && this.waiters.size > 0);
    this.#rechecking = 'no';
  }

  close(): void {
    this.#alarm?.clear();
  }

  /** Set by others while this one waits, which the compiler cannot see. */
  #isToRecheckAgain(): boolean {
    return this.#rechecking === 'again';
  }

  #wakeFirst(): void {
    this.#alarmAt = Infinity;
    const [first] = this.waiters;
    if (performance.now() < this.#leaseEndsAt) this.leaseEndsIn(this.#leaseEndsAt - performance.now());
    else if (first) void this.#ask(first);
  }
}
