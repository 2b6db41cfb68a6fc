import { once } from 'node:events';
import { Agent, request } from 'node:http';
import type { IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';

const ANSWER_WITHIN = 10_000;
const EXPECTED = [201, 410, 423];

/** Orders tickets over HTTP, from the shops in turn. */
export class ShopClient {
  readonly #shops: readonly string[];
  // First in, first out: no connection stays idle for so long that a shop closes it just when it is needed again.
  readonly #agent = new Agent({ keepAlive: true, scheduling: 'fifo' });

  /** @param shops their addresses */
  constructor(shops: readonly string[]) {
    this.#shops = shops;
  }

  /** @returns 201 bought, 410 sold out or 423 locked: any other answer is an error */
  async order(path: string, turn: number): Promise<number> {
    const url = `${this.#shops[turn % this.#shops.length]}${path}`;
    try {
      const signal = AbortSignal.timeout(ANSWER_WITHIN);
      const sent = request(url, { method: 'POST', agent: this.#agent, signal }).end();
      const [response] = (await once(sent, 'response')) as [IncomingMessage];
      const body = await text(response);
      const status = response.statusCode ?? 0;
      if (!EXPECTED.includes(status)) throw new Error(`${status} ${body}`);
      return status;
    } catch (error) {
      throw new Error(`POST ${url}: ${(error as Error).message}`, { cause: error });
    }
  }

  /** Closes all connections; an order that is still waiting for its answer fails. */
  close(): void {
    this.#agent.destroy();
  }
}
