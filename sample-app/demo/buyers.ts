import { setTimeout as pause } from 'node:timers/promises';
import type { Visit } from './ledger.js';
import { ShopClient } from './shop-client.js';

const AT_A_TIME = 80;
const CLOSING_TIME = 20_000;
const SHORTEST_PAUSE = 20;
const LONGEST_PAUSE = 80;

export interface Sale {
  /** Addresses of the shops. */
  shops: readonly string[];
  /** Where to buy: path of a buyer's order. */
  path: (buyer: string) => string;
  buyers: number;
  /** Told how each buyer fared. */
  note: (visit: Visit) => Promise<void>;
  /** Aborted to end the sale; aborted with the reason when it fails. */
  stop: AbortController;
}

/** Lets the buyers go for the tickets, many at a time; resolves when the last one has left. */
export async function letBuyersGo({ shops, path, buyers, note, stop }: Sale): Promise<void> {
  const client = new ShopClient(shops);
  stop.signal.addEventListener('abort', () => client.close());
  const closing = performance.now() + CLOSING_TIME;
  // One queue for all lanes: each takes the next buyer from it.
  const queue = Array.from({ length: buyers }, (_, i) => i).values();
  const lane = async () => {
    for (const i of queue) {
      const order = (tries: number) => client.order(path(`buyer-${i + 1}`), i + tries);
      await note(await visit(order, closing, stop.signal));
    }
  };
  // The first error stops all lanes, and each is waited for: none may still write when the demo cleans up.
  const lanes = Array.from({ length: AT_A_TIME }, lane);
  await Promise.all(lanes.map((each) => each.catch((error: unknown) => stop.abort(error))));
  client.close();
  stop.signal.throwIfAborted();
}

/** One buyer, who comes back while the lock is busy, to the next shop each time, until closing time. */
async function visit(
  order: (tries: number) => Promise<number>,
  closing: number,
  signal: AbortSignal,
): Promise<Visit> {
  const arrival = performance.now();
  for (let busy = 0; ; busy++) {
    signal.throwIfAborted();
    const status = await order(busy);
    const now = performance.now();
    const ms = now - arrival;
    if (status === 201) return { outcome: 'bought', busy, ms };
    if (status === 410) return { outcome: 'sold out', busy, ms };
    if (now > closing) return { outcome: 'gave up', busy: busy + 1, ms };
    // Retry-After is in whole seconds, so never below 1. These buyers know that a purchase takes some ms only.
    await pause(SHORTEST_PAUSE + Math.random() * (LONGEST_PAUSE - SHORTEST_PAUSE));
  }
}
