import type { Redis } from 'ioredis';
import { ConnectionSession } from './connection-session.js';
import { MAX_TIMER_DELAY, within } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { Outage } from './outage.js';
import { isReplaced, isReply } from './redis-client.js';
import { ScriptBatch } from './script-batch.js';
import { NotSentError, ScriptCall, unavailable } from './script-call.js';
import type { ScriptRequest } from './script-call.js';
import { Silence } from './silence.js';

/** What ioredis says of a command that it could not write, and does not queue. */
const NOT_WRITABLE = 'enableOfflineQueue';

/** Part of commandTimeout in which a connection that was lost may come back before calls are refused at once. */
const RESTART = 1 / 4;

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

const UNANSWERED = 'The connection to Redis was lost before there was an answer';

/**
 * Runs scripts on a connection that may be down: waits for it, so that it is always known what was not sent, and
 * replaces one that has fallen silent. What was not answered when a connection was lost is sent again on the next one.
 */
export class ScriptRunner implements Runner {
  readonly #client: Redis;
  readonly #commandTimeout: number;
  readonly #silence: Silence;
  readonly #outage: Outage;
  readonly #session: ConnectionSession;
  readonly #moveOn: (() => void) | undefined;
  /** Counts the connections. */
  #connection = 0;
  /** Whether scripts can be sent on it. */
  #isOpen = false;
  /** Pending until something happens to the connection. */
  #change: Promise<void> | undefined;
  #changed: () => void = () => undefined;
  #closed = false;
  /** What was sent and is not answered yet, the oldest first. */
  readonly #unanswered: ScriptBatch[] = [];
  /** Set while something is unanswered: one for all, for all have the same time. */
  #deadline: NodeJS.Timeout | undefined;
  /** End what waits for the answer to something else than a script. */
  readonly #others = new Set<(error: Error) => void>();
  readonly #slotOf: (name: string) => number | undefined;
  readonly #send = (batch: ScriptBatch) => this.#sendBatch(batch);
  readonly #isPassing = (error: Error) => this.#moveOn !== undefined && isReplaced(error);
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

  /**
   * @param client must not send anything again by itself
   * @param slotOf slot of a key in a cluster
   * @param moveOn told when the server refuses as one does that was replaced, where a new connection may lead to another
   * one: what was refused is sent again there
   */
  constructor(
    client: Redis,
    commandTimeout: number,
    slotOf: (name: string) => number | undefined,
    moveOn?: () => void,
  ) {
    this.#client = client;
    this.#commandTimeout = commandTimeout;
    this.#slotOf = slotOf;
    this.#moveOn = moveOn;
    this.#outage = new Outage(client, commandTimeout * RESTART);
    this.#session = new ConnectionSession(client);
    this.#silence = new Silence(
      client,
      commandTimeout,
      () => !this.#isOpen || this.#unanswered.length > 0 || this.#others.size > 0,
    );
    client.on('ready', () => void this.#open());
    client.on('close', () => this.#lost());
    for (const event of ['error', 'end'] as const) client.on(event, () => this.#changed());
  }

  /** What Redis or the socket said last, while the connection is down. */
  get lastWord(): Error | undefined {
    return this.#outage.lastWord;
  }

  ready(): Promise<void> | undefined {
    if (this.#isThere) return undefined;
    const patient = { isWanted: true, bounded: false };
    return this.#whenOpen(patient).catch(() => undefined); // whoever runs a script then is told
  }

  call<T>(request: ScriptRequest<T>): ScriptCall<T> {
    const call = new ScriptCall(request);
    if (this.#isThere) this.#dispatch(call as ScriptCall);
    else this.#dispatchWhenOpen(call as ScriptCall, this.#commandTimeout);
    return call;
  }

  /** Makes the connection anew, which may lead to another server. */
  renew(): void {
    if (this.#client.status !== 'ready') return; // it is about to be
    this.#isOpen = false;
    this.#client.disconnect(true);
  }

  get #isThere(): boolean {
    return this.#isOpen && this.#client.status === 'ready';
  }

  async #open(): Promise<void> {
    const connection = ++this.#connection;
    this.#silence.listen();
    await this.#session.begin();
    if (connection !== this.#connection || this.#client.status !== 'ready') return;
    this.#silence.heard();
    this.#isOpen = true;
    for (const batch of this.#unanswered.splice(0)) {
      // Their callers have heard of a failure, and give back what came of them: they would take locks for nobody.
      for (const call of batch.takeUnwanted()) call.failed(new Error(UNANSWERED));
      if (batch.calls.length > 0) this.#sendBatch(batch);
    }
    this.#changed();
  }

  #lost(): void {
    this.#isOpen = false;
    this.#known.clear(); // the next one may lead to another server
    this.#endOthers(new Error(UNANSWERED));
    this.#changed();
  }

  /** @param after number of the connection that is of no use */
  #dispatchWhenOpen(call: ScriptCall, patience: number, after?: number): void {
    call.expireIn(patience, () => this.#outage.lastWord);
    this.#whenOpen(call, after).then(
      () => {
        call.lastWord = undefined;
        this.#dispatch(call);
      },
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
    batch.connection = this.#connection;
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
    const refused = batch.replied(reply, this.#isPassing);
    if (refused) this.#sendElsewhere(batch, refused);
  }

  #failed(batch: ScriptBatch, error: unknown): void {
    this.#ended(batch);
    if (!(error instanceof Error)) return batch.failed(error);
    if (isReply(error)) this.#silence.heard();
    if (this.#isPassing(error)) {
      for (const call of batch.calls) call.lastWord = error;
      this.#sendElsewhere(batch, batch.calls);
    } else if (error.message.includes(NOT_WRITABLE)) {
      // It was not sent: the connection is about to be closed.
      if (batch.connection === this.#connection) this.#isOpen = false;
      for (const call of batch.calls) this.#dispatchWhenOpen(call, this.#commandTimeout);
    } else batch.failed(error);
  }

  /** Nothing was done, for the server may have been replaced: what is left of the calls' time is theirs to find the new one. */
  #sendElsewhere({ connection, sentAt = 0 }: ScriptBatch, calls: readonly ScriptCall[]): void {
    if (connection === this.#connection) this.#moveOn?.();
    const left = sentAt + this.#commandTimeout - performance.now();
    for (const call of calls) this.#dispatchWhenOpen(call, Math.max(0, left), connection);
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

  /**
   * Waits for a connection on which scripts can be sent, as long as that is wanted. Who has a deadline does not wait for
   * one that was refused.
   *
   * @param after number of the connection that is of no use
   * @throws NotSentError
   */
  async #whenOpen(asked: Pick<ScriptCall, 'isWanted' | 'bounded'>, after = -1): Promise<void> {
    const heard = this.#outage.lastWord;
    while (!this.#isThere || this.#connection <= after) {
      const { status } = this.#client;
      if (this.#closed || status === 'end') throw new NotSentError('The connection to Redis is closed');
      const wasRefused = status === 'reconnecting' || this.#outage.lastWord !== heard;
      const refusal = wasRefused && asked.bounded ? this.#outage.refusal : undefined;
      if (refusal) throw new NotSentError('There is no connection to Redis', { cause: refusal });
      if (status === 'wait') this.#client.connect().catch(() => undefined); // tries again by itself
      this.#change ??= new Promise((resolve) => {
        this.#changed = () => {
          this.#change = undefined;
          resolve();
        };
      });
      await this.#change;
      if (!asked.isWanted) throw new NotSentError('The connection to Redis was not there in time');
    }
  }

  bounded<T>(reply: Promise<T>, keys: readonly ResourceKeys[], timeout = Infinity): Promise<T> {
    return bounded(reply, keys, Math.min(timeout, this.#commandTimeout));
  }

  /** @throws LockUnavailableError */
  scan(cursor: string, pattern: string, count: number): Promise<[next: string, keys: string[]]> {
    const found = (async () => {
      const deadline = performance.now() + this.#commandTimeout;
      await this.#whenOpen({
        bounded: true,
        get isWanted() {
          return performance.now() <= deadline; // as long as it is waited for below
        },
      });
      return this.#untilLost(this.#client.scan(cursor, 'MATCH', pattern, 'COUNT', count));
    })();
    return this.bounded(found, []);
  }

  /** Ends the connection, and what waits for it or for an answer: ioredis tells nobody of that while it reconnects. */
  close(): void {
    this.#closed = true;
    this.#isOpen = false;
    this.#client.disconnect();
    clearTimeout(this.#deadline);
    this.#changed();
    for (const batch of this.#unanswered.splice(0)) batch.failed(closedError());
    this.#endOthers(closedError());
  }

  #endOthers(error: Error): void {
    for (const end of this.#others) end(error);
    this.#others.clear();
  }

  /** What is not sent again gets no answer any more when the connection is lost. */
  #untilLost<T>(reply: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#others.add(reject);
      this.#silence.listen();
      reply.then(resolve, reject).finally(() => this.#others.delete(reject));
    });
  }

  confirmed(_name: string, replicas: number): Promise<number> {
    // WAIT blocks the connection: one for all who want to know by the time it can be sent.
    this.#confirming ??= (this.#confirmed ?? Promise.resolve(0))
      .catch(() => undefined) // those who waited for it hear of it
      .then(() => {
        const wait = this.#client.wait(replicas, Math.ceil(this.#commandTimeout / 2));
        this.#confirmed = this.#untilLost(wait);
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
