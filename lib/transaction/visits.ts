/** Work, or a lock, that uses a scope that is not its own: it takes its turn there. */
export interface Visit {
  /** Gets in line. */
  takeTurn(): Turn;
  leave(): void;
}

export interface Turn {
  /** Resolves when those before it have left. */
  readonly begins: Promise<void>;
  /** Whether one of those is a lock that was acquired: it may never be released. */
  readonly isBehindAcquired: boolean;
}

/** Those who use one scope without being its own work, one at a time: first come, first served. */
export class Visits {
  /** Work that the scope waits for; resolved when it has left. */
  readonly #present = new Set<Promise<void>>();
  /** Locks that were acquired, or are about to be: they end with the scope's work. */
  readonly #acquired = new Set<AbortController>();
  #lastTurn: Promise<void> | undefined;
  #inLine = 0;
  #acquiredInLine = 0;
  #isOver = false;

  /**
   * Its turn comes when it takes it.
   *
   * @param acquired of a lock that was acquired: aborted when the scope's work has ended. Without it, the scope does
   * not end before the visitor has left.
   */
  begin(acquired?: AbortController): Visit {
    let settle = () => undefined as void;
    const left = new Promise<void>((resolve) => (settle = resolve));
    let leaveLine = () => undefined as void;
    if (acquired === undefined) this.#present.add(left);
    else if (this.#isOver) acquired.abort();
    else this.#acquired.add(acquired);

    const takeTurn = () => {
      const turn = {
        begins: this.#lastTurn ?? Promise.resolve(),
        isBehindAcquired: this.#acquiredInLine > 0,
      };
      this.#lastTurn = Promise.all([turn.begins, left]).then(() => undefined);
      this.#count(acquired, 1);
      leaveLine = () => this.#count(acquired, -1);
      return turn;
    };
    const leave = () => {
      this.#present.delete(left);
      if (acquired) this.#acquired.delete(acquired);
      leaveLine();
      leaveLine = () => undefined;
      settle();
    };
    return { takeTurn, leave };
  }

  /** Whether a turn would begin at once. */
  get isFree(): boolean {
    return this.#inLine === 0;
  }

  /** Settled when they have left; more may have come by then. */
  get present(): ReadonlySet<Promise<void>> {
    return this.#present;
  }

  /** The scope's work has ended, and with it what was acquired there, or waits for that. */
  endAcquired(): void {
    this.#isOver = true;
    for (const acquired of this.#acquired) acquired.abort();
  }

  #count(acquired: AbortController | undefined, by: 1 | -1): void {
    this.#inLine += by;
    if (acquired) this.#acquiredInLine += by;
  }
}
