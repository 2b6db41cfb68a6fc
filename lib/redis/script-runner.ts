import type { Redis } from 'ioredis';
import { MAX_TIMER_DELAY, within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { isReply } from './redis-client.js';
import { ScriptBatch } from './script-batch.js';
import { ScriptCall, unavailable } from './script-call.js';
import type { ScriptRequest } from './script-call.js';
import { Silence } from './silence.js';

/** What ioredis says of a command that it could not write, and does not queue. */
const NOT_WRITABLE = 'enableOfflineQueue';

/** A request that never left this process: there is nothing to undo. */
export class NotSentError extends Error {
  override readonly name = 'NotSentError';
}

/** Runs scripts where their keys are. */
export interface Runner {
  call<T>(request: ScriptRequest<T>): ScriptCall<T>;
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
  /** What was sent and is not answered yet, the oldest first. */
  readonly #unanswered: ScriptBatch[] = [];
  /** Set while something is unanswered: one for all, for all have the same time. */
  #deadline: NodeJS.Timeout | undefined;
  /** Ends what waits for the answer to a search. */
  readonly #searches = new Set<() => void>();
  readonly #slotOf: (name: string) => number | undefined;
  readonly #send = (batch: ScriptBatch) => this.#sendBatch(batch);
  /**
   * Scripts that were sent as text on this connection. Each is, once: a script that turns out to be unknown would be run
   * after what was sent later.
   */
  readonly #known = new Set<string>();
  /** By slot, for the keys of a script have to be in one: the last batch, which may still take more. */
  readonly #collecting = new Map<number | undefined, ScriptBatch>();
  /** The last WAIT that was sent, and the one that will be sent when it has been answered. */
  #confirmed: Promise<number> | undefined;
  #confirming: Promise<number> | undefined;

  /** @param slotOf slot of a key in a cluster */
  constructor(client: Redis, commandTimeout: number, slotOf: (name: string) => number | undefined) {
    this.#client = client;
    this.#commandTimeout = commandTimeout;
    this.#slotOf = slotOf;
    this.#silence = new Silence(
      client,
      commandTimeout,
      () => this.#unanswered.length > 0 || this.#searches.size > 0,
    );
    client.on('close', () => this.#known.clear()); // the next one may lead to another server
  }

  ready(): Promise<void> | undefined {
    if (this.#client.status === 'ready') return undefined;
    return this.#whenReady(() => true).catch(() => undefined); // whoever runs a script then is told
  }

  call<T>(request: ScriptRequest<T>): ScriptCall<T> {
    const call = new ScriptCall(request);
    if (this.#client.status === 'ready') this.#dispatch(call as ScriptCall);
    else this.#dispatchWhenReady(call as ScriptCall);
    return call;
  }

  #dispatchWhenReady(call: ScriptCall): void {
    call.expireIn(this.#commandTimeout);
    this.#whenReady(() => call.isWanted).then(
      () => this.#dispatch(call),
      (error: unknown) => call.failed(error),
    );
  }

  /** What was asked for first is sent first, where it can concern the same keys. */
  #dispatch(call: ScriptCall): void {
    const { script, names } = call;
    const slot = this.#slotOf(names[0] ?? '');
    const collecting = this.#collecting.get(slot);
    if (collecting?.takes(call)) return collecting.add(call);
    collecting?.flush();
    const batch = new ScriptBatch(script, this.#send);
    if ('answersEach' in script) this.#collecting.set(slot, batch);
    batch.add(call);
  }

  #sendBatch(batch: ScriptBatch): void {
    const { sha, text } = batch.script;
    const args = batch.args();
    const isKnown = this.#known.has(sha);
    this.#known.add(sha);
    this.#unanswered.push(batch);
    if (!this.#closed) this.#deadline ??= this.#expireIn(this.#commandTimeout); // otherwise it fails at once
    this.#silence.listen();
    let sent: Promise<unknown>;
    try {
      sent = isKnown ? this.#client.evalsha(sha, ...args) : this.#client.eval(text, ...args);
    } catch (error) {
      return this.#failed(batch, error);
    }
    sent.then(
      (reply) => this.#answered(batch, reply),
      (error: Error) => {
        if (isReply(error) && error.message.startsWith('NOSCRIPT')) {
          this.#client.eval(text, ...args).then(
            (reply) => this.#answered(batch, reply),
            (again: unknown) => this.#failed(batch, again),
          );
        } else this.#failed(batch, error);
      },
    );
  }

  #answered(batch: ScriptBatch, reply: unknown): void {
    this.#ended(batch);
    this.#silence.heard();
    batch.replied(reply);
  }

  #failed(batch: ScriptBatch, error: unknown): void {
    this.#ended(batch);
    if (error instanceof Error && isReply(error)) this.#silence.heard();
    if (error instanceof Error && error.message.includes(NOT_WRITABLE)) {
      // It was not sent: the connection is about to be closed.
      for (const call of batch.calls) this.#dispatchWhenReady(call);
    } else batch.failed(error);
  }

  #ended(batch: ScriptBatch): void {
    // Redis answers in order: it is the first one, but for what was sent again.
    const place = this.#unanswered.indexOf(batch);
    if (place === 0) this.#unanswered.shift();
    else if (place > 0) this.#unanswered.splice(place, 1);
  }

  #expireIn(ms: number): NodeJS.Timeout {
    return setTimeout(() => this.#expire(), Math.min(ms, MAX_TIMER_DELAY)).unref();
  }

  /** All that were sent too long ago; the next ones later. Their replies may still come. */
  #expire(): void {
    this.#deadline = undefined;
    for (const { sentAt = 0, calls } of this.#unanswered) {
      const left = sentAt + this.#commandTimeout - performance.now();
      if (left > 0) {
        this.#deadline = this.#expireIn(left);
        return;
      }
      for (const call of calls) call.expire(this.#commandTimeout);
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
      if (this.#client.status !== 'ready') await this.#whenReady(wantedFor(this.#commandTimeout)); // as long as it is waited for below
      const reply = this.#client.scan(cursor, 'MATCH', pattern, 'COUNT', count);
      return this.#untilClosed(reply);
    })();
    return this.bounded(found, []);
  }

  /** Ends the connection, and what waits for it or for an answer: ioredis tells nobody of that while it reconnects. */
  close(): void {
    this.#closed = true;
    this.#client.disconnect();
    clearTimeout(this.#deadline);
    this.#stopWaiting();
    for (const batch of this.#unanswered.splice(0)) batch.failed(closedError());
    for (const end of this.#searches) end();
  }

  #untilClosed<T>(reply: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const end = () => reject(closedError());
      this.#searches.add(end);
      this.#silence.listen();
      reply.then(resolve, reject).finally(() => this.#searches.delete(end));
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

function closedError(): Error {
  return new Error('The connection to Redis was closed before there was an answer');
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

function wantedFor(ms: number): () => boolean {
  const deadline = performance.now() + ms;
  return () => performance.now() <= deadline;
}
