import type { Redis } from 'ioredis';
import { LockUnavailableError } from '../errors/lock.errors.js';
import { DeadlineError, within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { isReply } from './redis-client.js';
import type { RedisClient } from './redis-client.js';
import { ScriptBatch } from './script-batch.js';
import type { ClaimScript, Script } from './script-parts.js';

/** What ioredis says of a command that it could not write, and does not queue. */
const NOT_WRITABLE = 'enableOfflineQueue';

/** A request that never left this process: there is nothing to undo. */
export class NotSentError extends Error {
  override readonly name = 'NotSentError';
}

/**
 * Runs scripts on a connection that may be down: waits for it, so that it is always known what was not sent, and
 * replaces one that has fallen silent.
 */
export class ScriptRunner {
  readonly #client: RedisClient;
  readonly #commandTimeout: number;
  #lostConnections = 0;
  #heardAt = 0;
  #ready: Promise<void> | undefined;
  readonly #batches = new Map<ClaimScript, ScriptBatch>();

  constructor(client: RedisClient, commandTimeout: number) {
    this.#client = client;
    this.#commandTimeout = commandTimeout;
    client.on('close', this.#countLostConnection);
  }

  /** How often the connection was lost: a request that was under way then may have been sent twice. */
  get lostConnections(): number {
    return this.#lostConnections;
  }

  /** Resolves when the connection is there, or closed for good; undefined: it is there. */
  ready(): Promise<void> | undefined {
    if (this.#client.status === 'ready') return undefined;
    return this.#whenReady(() => true).catch(() => undefined); // whoever runs a script then is told
  }

  close(): void {
    this.#client.off('close', this.#countLostConnection);
  }

  /**
   * @param isWanted false: nobody waits for the answer any more; default: until commandTimeout is over
   * @throws NotSentError, or Redis' own error
   */
  async run(
    script: Script | ClaimScript,
    keys: readonly string[],
    argv: readonly (string | number)[],
    isWanted = wantedFor(this.#commandTimeout),
  ): Promise<unknown> {
    if (this.#client.status !== 'ready') await this.#whenReady(isWanted);
    for (;;) {
      try {
        return await ('answersEach' in script
          ? this.#batchOf(script).add(keys, argv)
          : this.#send(script, keys, argv));
      } catch (error) {
        if (!(error instanceof Error) || !error.message.includes(NOT_WRITABLE)) throw error;
        await this.#whenReady(isWanted); // it was not sent: the connection is about to be closed
      }
    }
  }

  #batchOf(script: ClaimScript): ScriptBatch {
    let batch = this.#batches.get(script);
    if (batch === undefined) {
      batch = new ScriptBatch((keys, argv) => this.#send(script, keys, argv));
      this.#batches.set(script, batch);
    }
    return batch;
  }

  async #send(script: Script, keys: readonly string[], argv: readonly (string | number)[]): Promise<unknown> {
    const args = [keys.length, ...keys, ...argv] as const;
    try {
      const reply: unknown = await this.#client.evalsha(script.sha, ...args);
      this.#heardAt = performance.now();
      return reply;
    } catch (error) {
      if (error instanceof Error && isReply(error)) {
        this.#heardAt = performance.now();
        if (error.message.startsWith('NOSCRIPT')) return this.#client.eval(script.text, ...args);
      }
      throw error;
    }
  }

  /** @throws NotSentError when it takes so long that nobody waits for the answer any more */
  async #whenReady(isWanted: () => boolean): Promise<void> {
    const { status } = this.#client;
    if (status === 'end') throw new NotSentError('The connection to Redis is closed');
    if (status === 'wait') this.#client.connect().catch(() => undefined); // tries again by itself
    this.#ready ??= new Promise((resolve) => {
      const settle = () => {
        this.#client.off('ready', settle).off('end', settle);
        this.#ready = undefined;
        resolve();
      };
      this.#client.on('ready', settle).on('end', settle);
    });
    await this.#ready;
    if (!isWanted() || this.#client.status !== 'ready') {
      throw new NotSentError('The connection to Redis was not there in time');
    }
  }

  /** @throws LockUnavailableError also when there is no answer within the timeout, commandTimeout at most */
  async bounded<T>(reply: Promise<T>, keys: readonly ResourceKeys[], timeout = Infinity): Promise<T> {
    const sent = performance.now();
    try {
      return await within(Math.min(timeout, this.#commandTimeout), reply);
    } catch (error) {
      if (error instanceof DeadlineError) this.#doubtConnection(sent);
      throw unavailable(error, keys);
    }
  }

  /** A connection on which nothing was heard for a whole commandTimeout may be dead without knowing: a new one is made. */
  #doubtConnection(sent: number): void {
    const silent = this.#heardAt < sent && performance.now() - sent >= this.#commandTimeout;
    if (silent && this.#client.status === 'ready' && !this.#client.isCluster) {
      (this.#client as Redis).disconnect(true);
    }
  }

  readonly #countLostConnection = (): void => {
    this.#lostConnections += 1;
  };
}

function wantedFor(ms: number): () => boolean {
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
