/** ms; said as long as nothing is known. */
const UNKNOWN = 1_000;
/** The part that each new time has in the average. */
const WEIGHT = 1 / 8;

/**
 * How long it took lately until a busy lock was had, in one service: what waiting took, or else how long locks were held.
 * Callers who cannot have a lock hear it as `retryAfter`, in place of the lease, which lasts far longer than most work does.
 */
export class RecentTimes {
  #waited: number | undefined;
  #held: number | undefined;

  addWait(ms: number): void {
    this.#waited = average(this.#waited, ms);
  }

  /** What was in vain says only that it takes longer than that. */
  addWaitInVain(ms: number): void {
    if (ms > this.retryAfter()) this.addWait(ms);
  }

  addHold(ms: number): void {
    this.#held = average(this.#held, ms);
  }

  /**
   * ms after which a new try makes sense.
   *
   * @param left ms of the holder's lease, if known: never more than that
   */
  retryAfter(left = Infinity): number {
    return Math.max(1, Math.ceil(Math.min(this.#waited ?? this.#held ?? UNKNOWN, left)));
  }
}

function average(before: number | undefined, ms: number): number {
  return before === undefined ? ms : before + (ms - before) * WEIGHT;
}
