import { types } from 'node:util';
import { LockUnavailableError } from '../errors/lock.errors.js';
import { DeadlineError, MAX_TIMER_DELAY } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { shown } from './redis-client.js';
import type { ClaimScript, Script } from './script-parts.js';

/** A request that never left this process: there is nothing to undo. Its cause says why, where that is known. */
export class NotSentError extends Error {
  override readonly name = 'NotSentError';
}

/** What a script is to be run for. */
export interface ScriptRequest<T> {
  readonly script: Script | ClaimScript;
  /** Names of its KEYS. */
  readonly names: readonly string[];
  readonly argv: readonly (string | number)[];
  /** Whose keys these are, for errors. */
  readonly keys: readonly ResourceKeys[];
  readonly decode: (reply: unknown) => T;
  /** Whether the answer has a deadline: commandTimeout. Default: true. */
  readonly bounded?: boolean;
  /** Hears the answer, in place of a promise. */
  readonly listener?: AnswerListener<T> | undefined;
}

/** Is told once, as a promise for an answer would be settled. */
export interface AnswerListener<T> {
  /** false: to send it is of no use any more. */
  isWanted(): boolean;
  answered(answer: T): void;
  failed(error: LockUnavailableError): void;
}

/** What Redis said to a call, or why there is no reply. */
class Outcome<T> {
  constructor(
    readonly failed: boolean,
    readonly value: T | undefined,
    readonly error?: unknown,
  ) {}
}

/**
 * A script that was asked for, until Redis has replied. There are many of these: a promise is made only where somebody
 * looks at it.
 */
export class ScriptCall<T = unknown> implements ScriptRequest<T> {
  readonly script: Script | ClaimScript;
  readonly names: readonly string[];
  readonly argv: readonly (string | number)[];
  readonly keys: readonly ResourceKeys[];
  readonly decode: (reply: unknown) => T;
  readonly bounded: boolean;
  readonly listener: AnswerListener<T> | undefined;
  /** For which it was not sent so far, or has to be sent again. */
  lastWord: Error | undefined;
  #outcome: Outcome<T> | undefined;
  #deadline: DeadlineError | undefined;
  #timer: NodeJS.Timeout | undefined;
  #answer: Settled<T> | undefined;
  #reply: Settled<T> | undefined;

  constructor({ script, names, argv, keys, decode, bounded = true, listener }: ScriptRequest<T>) {
    this.script = script;
    this.names = names;
    this.argv = argv;
    this.keys = keys;
    this.decode = decode;
    this.bounded = bounded;
    this.listener = listener;
    this.lastWord = undefined;
  }

  /**
   * What Redis replies in time.
   *
   * @throws LockUnavailableError when it refuses, or does not reply within commandTimeout
   */
  get answer(): Promise<T> {
    if (this.#answer === undefined) {
      this.#answer = new Settled();
      if (this.#deadline) this.#answer.reject(unavailable(this.#deadline, this.keys));
      else if (this.#outcome) this.#settleAnswer(this.#outcome);
    }
    return this.#answer.promise;
  }

  /**
   * What Redis replies, however late.
   *
   * @throws Redis' own error, or the connection's; NotSentError
   */
  get reply(): Promise<T> {
    if (this.#reply === undefined) {
      this.#reply = new Settled();
      if (this.#outcome) this.#settleReply(this.#outcome);
    }
    return this.#reply.promise;
  }

  /** Whether to send it is of use still: without a listener, until the answer is too late. */
  get isWanted(): boolean {
    return this.listener?.isWanted() ?? this.#deadline === undefined;
  }

  replied(reply: unknown): void {
    let outcome: Outcome<T>;
    try {
      outcome = new Outcome<T>(false, this.decode(reply));
    } catch (error) {
      outcome = new Outcome<T>(true, undefined, error);
    }
    this.#end(outcome);
  }

  failed(error: unknown): void {
    this.#end(new Outcome<T>(true, undefined, error));
  }

  /**
   * Has it expire after so many ms, unless it has ended. Keeps no process alive.
   *
   * @param lastWord why it was not sent until then, where no error has said so
   */
  expireIn(ms: number, lastWord?: () => Error | undefined): void {
    this.#timer ??= setTimeout(
      () => {
        this.lastWord = lastWord?.() ?? this.lastWord;
        this.expire(ms);
      },
      Math.min(ms, MAX_TIMER_DELAY),
    ).unref();
  }

  /** Its deadline is over; the reply may still come. */
  expire(ms: number): void {
    if (this.#outcome || this.#deadline || !this.bounded) return;
    this.#deadline = new DeadlineError(`No answer within ${Math.round(ms)} ms`, { cause: this.lastWord });
    this.#fail(this.#deadline);
  }

  #end(outcome: Outcome<T>): void {
    if (this.#outcome) return;
    this.#outcome = outcome;
    clearTimeout(this.#timer);
    if (!this.#deadline) this.#settleAnswer(outcome);
    this.#settleReply(outcome);
  }

  #settleAnswer(outcome: Outcome<T>): void {
    if (outcome.failed) return this.#fail(outcome.error);
    this.#answer?.resolve(outcome.value as T);
    this.listener?.answered(outcome.value as T);
  }

  #fail(error: unknown): void {
    const { keys, listener } = this;
    if (!this.#answer && !listener) return;
    const failure = unavailable(error, keys);
    this.#answer?.reject(failure);
    listener?.failed(failure);
  }

  #settleReply(outcome: Outcome<T>): void {
    if (outcome.failed) this.#reply?.reject(outcome.error);
    else this.#reply?.resolve(outcome.value as T);
  }
}

/** A promise and what settles it. */
class Settled<T> {
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  readonly promise: Promise<T>;

  constructor() {
    this.promise = new Promise<T>((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

export function unavailable(error: unknown, keys: readonly ResourceKeys[]): LockUnavailableError {
  if (error instanceof LockUnavailableError) return error;
  const cause = lastWordIn(error);
  const said = cause instanceof Error ? cause.message : String(cause);
  return new LockUnavailableError(`Redis could not be asked for the lock: ${said}`, {
    resources: keys.map(({ resource }) => resource),
    cause,
  });
}

/** Redis' or the socket's own, where that is why nothing was sent, or nothing was heard. */
function lastWordIn(error: unknown): unknown {
  const isOurs = error instanceof NotSentError || error instanceof DeadlineError;
  const cause: unknown = isOurs ? (error.cause ?? error) : error;
  return types.isNativeError(cause) ? shown(cause) : cause;
}
