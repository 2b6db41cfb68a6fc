/** What is in a bag knows its place there: -1 when it is in none. */
export interface Placed {
  place: number;
}

/**
 * Things that come and go often, in no order. Unlike a Map or a Set, which V8 makes anew from time to time and whose
 * old table then keeps everything alive that was in it until the next full garbage collection.
 */
export class Bag<Item extends Placed> implements Iterable<Item> {
  readonly #items: Item[] = [];

  add(item: Item): void {
    if (item.place === -1) item.place = this.#items.push(item) - 1;
  }

  /** @returns whether it was there */
  delete(item: Item): boolean {
    const { place } = item;
    if (place === -1) return false;
    const last = this.#items.pop();
    if (last !== undefined && last !== item) {
      this.#items[place] = last;
      last.place = place;
    }
    item.place = -1;
    return true;
  }

  find(isIt: (item: Item) => boolean): Item | undefined {
    return this.#items.find(isIt);
  }

  /** Those that are there now, whoever leaves meanwhile. */
  [Symbol.iterator](): Iterator<Item> {
    return [...this.#items].values();
  }
}
