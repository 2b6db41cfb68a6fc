/**
 * The places where the commits of one service are recorded, by the key of the hash they are in. A place is one commit's from
 * when it is sent until it is known what became of it: so no record is overwritten that somebody may ask for.
 */
export class CommitPlaces {
  readonly #taken = new Map<string, Set<number>>();

  /** @returns the first place that is free */
  take(fence: string): number {
    const taken = this.#taken.get(fence) ?? new Set();
    this.#taken.set(fence, taken);
    let place = 0;
    while (taken.has(place)) place += 1;
    taken.add(place);
    return place;
  }

  free(fence: string, place: number): void {
    const taken = this.#taken.get(fence);
    taken?.delete(place);
    if (taken?.size === 0) this.#taken.delete(fence);
  }
}
