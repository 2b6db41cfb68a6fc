import { openSync, writeSync } from 'node:fs';
import type { Lock } from '../../lib/index.js';
import { timeNow } from './history.js';
import type { Event, LeaseSeen, Outcome } from './history.js';

/** Writes down what happens to the calls of one process, at once: it may be killed at any time. */
export class Recorder {
  readonly #file: number;
  readonly #process: string;
  #calls = 0;

  /** @param name of the process, which no other has */
  constructor(file: string, name: string) {
    this.#file = openSync(file, 'a');
    this.#process = name;
  }

  asked(resources: readonly string[]): string {
    const call = `${this.#process}.${(this.#calls += 1)}`;
    this.#write({ what: 'asked', call, at: timeNow(), resources });
    return call;
  }

  queued(call: string): void {
    this.#write({ what: 'queued', call, at: timeNow() });
  }

  /** If it is. */
  held(call: string, lock: Lock): void {
    const at = timeNow(); // before it is looked at: what is held then was held here
    if (!lock.held) return;
    const { token, fencingTokens } = lock;
    this.#write({ what: 'held', call, at, token, fencingTokens: Object.fromEntries(fencingTokens) });
  }

  /** If the lock is. */
  inside(call: string, visitor: string, lock: Lock): void {
    const at = timeNow();
    if (lock.held) this.#write({ what: 'inside', call, at, visitor });
  }

  lease(call: string, seen: LeaseSeen): void {
    this.#write({ what: 'lease', call, at: timeNow(), ...seen });
  }

  stoodStill(from: number, to: number): void {
    this.#write({ what: 'stood still', from, to });
  }

  commit(call: string, commit: string, outcome: Outcome): void {
    this.#write({ what: 'commit', call, commit, outcome });
  }

  ended(call: string, code: string): void {
    this.#write({ what: 'ended', call, at: timeNow(), code });
  }

  #write(event: Event): void {
    writeSync(this.#file, `${JSON.stringify(event)}\n`);
  }
}
