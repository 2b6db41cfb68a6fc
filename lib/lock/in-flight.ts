/** Counts what is under way, so that closing can wait for it. */
export class InFlight {
  #count = 0;
  #onDrained: (() => void)[] = [];

  begin(): void {
    this.#count += 1;
  }

  end(): void {
    this.#count -= 1;
    if (this.#count === 0) for (const tell of this.#onDrained.splice(0)) tell();
  }

  /** Resolves as soon as nothing is under way. */
  async drained(): Promise<void> {
    if (this.#count > 0) await new Promise<void>((resolve) => this.#onDrained.push(resolve));
  }
}
