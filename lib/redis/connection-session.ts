import type { Redis } from 'ioredis';

/**
 * Names the connections that a client has one after the other, and has Redis end the one before: what is still under way
 * on it, through a network that was broken for a while, would otherwise be run after what is sent on the new one.
 */
export class ConnectionSession {
  readonly #redis: Redis;
  /** The last connection on which something may have been sent. */
  #last: { readonly id: string; readonly address: string } | undefined;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /**
   * To be called on a new connection before anything else is sent. Never rejects: where Redis does not allow this, old
   * requests can arrive late. Does not resolve when the connection is lost meanwhile.
   */
  async begin(): Promise<void> {
    if (this.#last) {
      // Another server may have given the same number to somebody else, but not to this address.
      const { id, address } = this.#last;
      const killed = this.#redis.call('CLIENT', 'KILL', 'ID', id, 'ADDR', address);
      killed.catch(() => undefined); // not allowed
    }
    const info = await this.#redis.call('CLIENT', 'INFO').catch(() => ''); // not allowed
    const [, id] = /(?:^| )id=(\d+)/.exec(String(info)) ?? [];
    const [, address] = / addr=(\S+)/.exec(String(info)) ?? [];
    // All connections through a socket of the file system have one address, and lose nothing on the way.
    const isNamed = id !== undefined && address !== undefined && !address.endsWith(':0');
    this.#last = isNamed ? { id, address } : undefined;
  }
}
