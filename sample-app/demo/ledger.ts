import { Redis } from 'ioredis';
import { concertKeys } from '../tickets/concert-keys.js';
import type { Order } from '../tickets/order.js';

/** How a buyer fared. */
export interface Visit {
  outcome: 'bought' | 'sold out' | 'gave up';
  /** How often the buyer was told that the lock is held, and to come back. */
  busy: number;
  /** From the first request to the ticket or to the end of hope. */
  ms: number;
}

/** What Redis has about one sale when it is over. */
export interface SaleFigures {
  /** What the stock has gone down by. */
  sold: number;
  orders: Order[];
  busy: number;
  soldOut: number;
  gaveUp: number;
  /** ms of each visit that ended with a ticket, in ascending order. */
  purchases: number[];
}

/**
 * The demo's view of Redis: it opens sales, notes how the buyers fared, and reads back what came of it. Nothing is
 * remembered outside of Redis.
 */
export class Ledger {
  readonly #redis: Redis;
  readonly #concerts: string[] = [];

  constructor(url: string) {
    // A server that goes away is the end of the demo, not something to wait for.
    this.#redis = new Redis(url, { retryStrategy: () => null });
    this.#redis.on('error', () => undefined); // the commands reject as well
  }

  async putOnSale(concertId: string, tickets: number): Promise<void> {
    this.#concerts.push(concertId);
    await this.#redis.set(concertKeys(concertId).stock, tickets);
  }

  async note(concertId: string, { outcome, busy, ms }: Visit): Promise<void> {
    const { visits, purchases } = ledgerKeys(concertId);
    const notes = this.#redis.multi().hincrby(visits, outcome, 1).hincrby(visits, 'busy', busy);
    if (outcome === 'bought') notes.rpush(purchases, ms);
    await notes.exec();
  }

  async figures(concertId: string, tickets: number): Promise<SaleFigures> {
    const { stock, orders } = concertKeys(concertId);
    const { visits, purchases } = ledgerKeys(concertId);
    const counts = await this.#redis.hgetall(visits);
    return {
      sold: tickets - Number(await this.#redis.get(stock)),
      orders: (await this.#redis.lrange(orders, 0, -1)).map((order) => JSON.parse(order) as Order),
      busy: Number(counts['busy'] ?? 0),
      soldOut: Number(counts['sold out'] ?? 0),
      gaveUp: Number(counts['gave up'] ?? 0),
      purchases: (await this.#redis.lrange(purchases, 0, -1)).map(Number).sort((a, b) => a - b),
    };
  }

  /** Deletes what the sales have left in Redis, what the library remembers about their locks included. */
  async close(): Promise<void> {
    try {
      for (const concertId of this.#concerts) {
        const lock = ['lock', 'lock:queue', 'lock:fence'].map((name) => `${name}:{concert:${concertId}}`);
        const data = Object.values({ ...concertKeys(concertId), ...ledgerKeys(concertId) });
        await this.#redis.del(...data, ...lock);
      }
    } finally {
      this.#redis.disconnect();
    }
  }
}

function ledgerKeys(concertId: string) {
  return {
    /** Hash: how many visits ended how, and how often a lock was busy. */
    visits: `{concert:${concertId}}:visits`,
    /** List: ms of each visit that ended with a ticket. */
    purchases: `{concert:${concertId}}:purchases`,
  };
}
