import type { Redis } from 'ioredis';
import { LockUnavailableError } from '../errors/lock.errors.js';
import { within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { isReply } from './redis-client.js';
import { KEYS_OF_ONE, ScriptBatch } from './script-batch.js';
import type { ClaimScript, Script } from './script-parts.js';
import { Silence } from './silence.js';

/** What ioredis says of a command that it could not write, and does not queue. */
const NOT_WRITABLE = 'enableOfflineQueue';

/** A request that never left this process: there is nothing to undo. */
export class NotSentError extends Error {
  override readonly name = 'NotSentError';
}

/** Runs scripts where their keys are. */
export interface Runner {
  /**
   * @param isWanted false: nobody waits for the answer any more; default: until commandTimeout is over
   * @throws NotSentError, or Redis' own error
   */
  run(
    script: Script | ClaimScript,
    keys: readonly string[],
    argv: readonly (string | number)[],
    isWanted?: () => boolean,
  ): Promise<unknown>;
  /** Resolves when the connection is there, or closed for good; undefined: it is there. */
  ready(): Promise<void> | undefined;
  /** @throws LockUnavailableError also when there is no answer within the timeout, commandTimeout at most */
  bounded<T>(reply: Promise<T>, keys: readonly ResourceKeys[], timeout?: number): Promise<T>;
  /**
   * How many replicas have everything that was written here before, as soon as there are enough, or half of
   * commandTimeout is over.
   *
   * @param name of a key, where there are several servers
   */
  confirmed(name: string, replicas: number): Promise<number>;
}

/**
 * Runs scripts on a connection that may be down: waits for it, so that it is always known what was not sent, and
 * replaces one that has fallen silent.
 */
export class ScriptRunner implements Runner {
  readonly #client: Redis;
  readonly #commandTimeout: number;
  readonly #silence: Silence;
  #ready: Promise<void> | undefined;
  #stopWaiting: () => void = () => undefined;
  #closed = false;
  /** For each request that is not answered yet. */
  readonly #unanswered = new Set<() => void>();
  readonly #slotOf: (name: string) => number | undefined;
  /**
   * Scripts that were sent as text on this connection. Each is, once: a script that turns out to be unknown would be run
   * after what was sent later.
   */
  readonly #known = new Set<string>();
  /** By slot, for the keys of a script have to be in one: the last batch, which may still take more. */
  readonly #collecting = new Map<number | undefined, { script: Script; batch: ScriptBatch }>();
  /** The last WAIT that was sent, and the one that will be sent when it has been answered. */
  #confirmed: Promise<number> | undefined;
  #confirming: Promise<number> | undefined;

  /** @param slotOf slot of a key in a cluster */
  constructor(client: Redis, commandTimeout: number, slotOf: (name: string) => number | undefined) {
    this.#client = client;
    this.#commandTimeout = commandTimeout;
    this.#slotOf = slotOf;
    this.#silence = new Silence(client, commandTimeout, () => this.#unanswered.size > 0);
    client.on('close', () => this.#known.clear()); // the next one may lead to another server
  }

  ready(): Promise<void> | undefined {
    if (this.#client.status === 'ready') return undefined;
    return this.#whenReady(() => true).catch(() => undefined); // whoever runs a script then is told
  }

  async run(
    script: Script | ClaimScript,
    keys: readonly string[],
    argv: readonly (string | number)[],
    isWanted = wantedFor(this.#commandTimeout),
  ): Promise<unknown> {
    if (this.#client.status !== 'ready') await this.#whenReady(isWanted);
    for (;;) {
      try {
        return await this.#dispatch(script, keys, argv);
      } catch (error) {
        if (!(error instanceof Error) || !error.message.includes(NOT_WRITABLE)) throw error;
        await this.#whenReady(isWanted); // it was not sent: the connection is about to be closed
      }
    }
  }

  /** What was asked for first is sent first, where it can concern the same keys. */
  #dispatch(
    script: Script | ClaimScript,
    keys: readonly string[],
    argv: readonly (string | number)[],
  ): Promise<unknown> {
    const slot = this.#slotOf(keys[0] ?? '');
    const collecting = this.#collecting.get(slot);
    const fits = collecting?.script === script && !collecting.batch.isSent && keys.length === KEYS_OF_ONE;
    if (fits) return collecting.batch.add(keys, argv);
    collecting?.batch.flush();
    this.#collecting.delete(slot);
    if (!('answersEach' in script)) return this.#send(script, keys, argv);
    const batch = new ScriptBatch((allKeys, allArgv) => this.#send(script, allKeys, allArgv));
    this.#collecting.set(slot, { script, batch });
    return batch.add(keys, argv);
  }

  async #send(script: Script, keys: readonly string[], argv: readonly (string | number)[]): Promise<unknown> {
    const args = [keys.length, ...keys, ...argv] as const;
    const isKnown = this.#known.has(script.sha);
    this.#known.add(script.sha);
    const sent = isKnown
      ? this.#client.evalsha(script.sha, ...args)
      : this.#client.eval(script.text, ...args);
    try {
      const reply = await this.#untilClosed(sent);
      this.#silence.heard();
      return reply;
    } catch (error) {
      if (error instanceof Error && isReply(error)) {
        this.#silence.heard();
        if (error.message.startsWith('NOSCRIPT')) {
          return this.#untilClosed(this.#client.eval(script.text, ...args));
        }
      }
      throw error;
    }
  }

  /** @throws NotSentError when it takes so long that nobody waits for the answer any more */
  async #whenReady(isWanted: () => boolean): Promise<void> {
    const { status } = this.#client;
    if (this.#closed || status === 'end') throw new NotSentError('The connection to Redis is closed');
    if (status === 'wait') this.#client.connect().catch(() => undefined); // tries again by itself
    this.#ready ??= new Promise((resolve) => {
      const settle = () => {
        this.#client.off('ready', settle).off('end', settle);
        this.#ready = undefined;
        resolve();
      };
      this.#client.on('ready', settle).on('end', settle);
      this.#stopWaiting = settle;
    });
    await this.#ready;
    if (!isWanted() || this.#client.status !== 'ready') {
      throw new NotSentError('The connection to Redis was not there in time');
    }
  }

  bounded<T>(reply: Promise<T>, keys: readonly ResourceKeys[], timeout = Infinity): Promise<T> {
    return bounded(reply, keys, Math.min(timeout, this.#commandTimeout));
  }

  /** @throws LockUnavailableError */
  async scan(cursor: string, pattern: string, count: number): Promise<[next: string, keys: string[]]> {
    const found = (async () => {
      if (this.#client.status !== 'ready') await this.#whenReady(wantedFor(this.#commandTimeout));
      const reply = this.#client.scan(cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'string');
      return this.#untilClosed(reply);
    })();
    return this.bounded(found, []);
  }

  /** Ends the connection, and what waits for it or for an answer: ioredis tells nobody of that while it reconnects. */
  close(): void {
    this.#closed = true;
    this.#client.disconnect();
    this.#stopWaiting();
    for (const end of this.#unanswered) end();
  }

  #untilClosed<T>(reply: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const end = () => reject(new Error('The connection to Redis was closed before there was an answer'));
      this.#unanswered.add(end);
      this.#silence.listen();
      reply.then(resolve, reject).finally(() => this.#unanswered.delete(end));
    });
  }

  confirmed(_name: string, replicas: number): Promise<number> {
    // WAIT blocks the connection: one for all who want to know by the time it can be sent.
    this.#confirming ??= (this.#confirmed ?? Promise.resolve(0))
      .catch(() => undefined) // those who waited for it hear of it
      .then(() => {
        this.#confirmed = this.#client.wait(replicas, Math.ceil(this.#commandTimeout / 2));
        this.#confirming = undefined;
        return this.#confirmed;
      });
    return this.#confirming;
  }
}

/** @throws LockUnavailableError when it fails, or is not there within so many ms */
export async function bounded<T>(
  reply: Promise<T>,
  keys: readonly ResourceKeys[],
  timeout: number,
): Promise<T> {
  try {
    return await within(timeout, reply);
  } catch (error) {
    throw unavailable(error, keys);
  }
}

export function wantedFor(ms: number): () => boolean {
  const deadline = performance.now() + ms;
  return () => performance.now() <= deadline;
}

export function unavailable(cause: unknown, keys: readonly ResourceKeys[]): LockUnavailableError {
  const said = cause instanceof Error ? cause.message : String(cause);
  return new LockUnavailableError(`Redis could not be asked for the lock: ${said}`, {
    resources: keys.map(({ resource }) => resource),
    cause,
  });
}
