/** Work that uses a scope that is not its own: it takes its turn, and the scope does not end before it has left. */
export interface Visit {
  /** Gets in line; resolves when those before it have left. */
  takeTurn(): Promise<void>;
  leave(): void;
}

/** Those who use one scope without being its own work, one at a time: first come, first served. */
export class Visits {
  /** Resolved when they have left. */
  readonly #present = new Set<Promise<void>>();
  #lastTurn: Promise<void> | undefined;

  /** From now on the scope does not end before the visitor has left. Its turn comes when it takes it. */
  begin(): Visit {
    let settle = () => undefined as void;
    const left = new Promise<void>((resolve) => (settle = resolve));
    this.#present.add(left);
    const takeTurn = () => {
      const turn = this.#lastTurn ?? Promise.resolve();
      this.#lastTurn = Promise.all([turn, left]).then(() => undefined);
      return turn;
    };
    const leave = () => {
      this.#present.delete(left);
      settle();
    };
    return { takeTurn, leave };
  }

  /** Settled when they have left; more may have come by then. */
  get present(): ReadonlySet<Promise<void>> {
    return this.#present;
  }
}
