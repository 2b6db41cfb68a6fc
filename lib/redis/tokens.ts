import { createHash, randomBytes } from 'node:crypto';

/** Secrets that come from one hash: 64 bits each. */
const SECRETS_OF_HASH = 8;
const SECRET_LENGTH = 16;

/**
 * Makes the tokens of one lock service: `<client id>:<sequence>.<secret>:<ttl>`.
 *
 * The client id is random and public, as part of a channel's name. The secret is there for tokens that may wait. It seals the
 * messages by which Redis tells a waiter that it has the lock, so that nobody else can; it is in the queue and in the owner
 * key, which need rights on keys, and in no message. This service can tell it again from the rest of the token.
 */
export class Tokens {
  readonly clientId = randomBytes(12).toString('base64url');
  readonly #key = randomBytes(32);
  #sequence = 0;
  #hashed = -1;
  #secrets = '';

  /**
   * @param ttl ms
   * @param waits whether it may get in line
   * @param sharded whether its waiter listens to a sharded channel
   */
  next(ttl: number, waits: boolean, sharded: boolean): string {
    this.#sequence += 1;
    const secret = waits ? `.${this.#secretOf(this.#sequence)}` : '';
    return `${this.clientId}:${sharded ? 's' : ''}${this.#sequence}${secret}:${ttl}`;
  }

  /** @returns the token of that name, with its secret; undefined where it is none of this service */
  ofName(name: string): string | undefined {
    const [, client, marker, sequence, ttl] = /^([^:]*):(s?)(\d{1,15}):(\d+)$/.exec(name) ?? [];
    if (client !== this.clientId || Number(sequence) > this.#sequence) return undefined;
    return `${client}:${marker}${sequence}.${this.#secretOf(Number(sequence))}:${ttl}`;
  }

  #secretOf(sequence: number): string {
    const hashed = Math.floor(sequence / SECRETS_OF_HASH);
    if (hashed !== this.#hashed) {
      this.#secrets = createHash('sha512').update(this.#key).update(String(hashed)).digest('hex');
      this.#hashed = hashed;
    }
    const start = (sequence % SECRETS_OF_HASH) * SECRET_LENGTH;
    return this.#secrets.slice(start, start + SECRET_LENGTH);
  }
}

/** The token without its secret: what runs and messages call it by. */
export function nameOf(token: string): string {
  return token.replace(/\.[^:]*/, '');
}
