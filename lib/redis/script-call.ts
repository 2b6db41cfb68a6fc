import { LockUnavailableError } from '../errors/lock.errors.js';
import { DeadlineError, MAX_TIMER_DELAY } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import type { ClaimScript, Script } from './script-parts.js';

/** What a script is to be run for. */
export interface ScriptRequest<T> {
  readonly script: Script | ClaimScript;
  /** Names of its KEYS. */
  readonly names: readonly string[];
  readonly argv: readonly (string | number)[];
  /** Whose keys these are, for errors. */
  readonly keys: readonly ResourceKeys[];
  readonly decode: (reply: unknown) => T;
  /** Whether `answer` has a deadline: commandTimeout. Default: true. */
  readonly bounded?: boolean;
  /** false: nobody waits for the answer any more. Default: until commandTimeout is over. */
  readonly isWanted?: () => boolean;
}

type Outcome<T> =
  | { readonly value: T; readonly error?: never; readonly failed: false }
  | { readonly error: unknown; readonly failed: true };

/**
 * A script that was asked for, until it is answered. Without promises of its own but those that somebody looks at: there
 * are many of these.
 */
export class ScriptCall<T = unknown> {
  readonly request: ScriptRequest<T>;
  #outcome: Outcome<T> | undefined;
  #deadline: DeadlineError | undefined;
  #timer: NodeJS.Timeout | undefined;
  #answer: Settled<T> | undefined;
  #reply: Settled<T> | undefined;

  constructor(request: ScriptRequest<T>) {
    this.request = request;
  }

  /**
   * What Redis answers in time.
   *
   * @throws LockUnavailableError when it refuses, or does not answer within commandTimeout
   */
  get answer(): Promise<T> {
    if (this.#answer === undefined) {
      this.#answer = new Settled();
      if (this.#outcome) this.#tell(this.#outcome);
      else if (this.#deadline) this.#answer.reject(unavailable(this.#deadline, this.request.keys));
    }
    return this.#answer.promise;
  }

  /**
   * What Redis answers, however late.
   *
   * @throws Redis' own error, or the connection's; NotSentError
   */
  get reply(): Promise<T> {
    if (this.#reply === undefined) {
      this.#reply = new Settled();
      if (this.#outcome) this.#tell(this.#outcome);
    }
    return this.#reply.promise;
  }

  /** Whether somebody waits for it in vain, or has. */
  get isExpired(): boolean {
    return this.#deadline !== undefined;
  }

  answered(reply: unknown): void {
    try {
      this.#end({ value: this.request.decode(reply), failed: false });
    } catch (error) {
      this.#end({ error, failed: true });
    }
  }

  failed(error: unknown): void {
    this.#end({ error, failed: true });
  }

  /** Has it expire after so many ms, unless it has ended. Keeps no process alive. */
  expireIn(ms: number): void {
    this.#timer ??= setTimeout(() => this.expire(ms), Math.min(ms, MAX_TIMER_DELAY)).unref();
  }

  /** Its deadline is over; the reply may still come. */
  expire(ms: number): void {
    if (this.#outcome || this.#deadline || this.request.bounded === false) return;
    this.#deadline = new DeadlineError(`No answer within ${ms} ms`);
    this.#answer?.reject(unavailable(this.#deadline, this.request.keys));
  }

  #end(outcome: Outcome<T>): void {
    if (this.#outcome) return;
    this.#outcome = outcome;
    clearTimeout(this.#timer);
    this.#tell(outcome);
  }

  #tell(outcome: Outcome<T>): void {
    if (outcome.failed) {
      this.#answer?.reject(unavailable(outcome.error, this.request.keys));
      this.#reply?.reject(outcome.error);
    } else {
      this.#answer?.resolve(outcome.value);
      this.#reply?.resolve(outcome.value);
    }
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

export function unavailable(cause: unknown, keys: readonly ResourceKeys[]): LockUnavailableError {
  const said = cause instanceof Error ? cause.message : String(cause);
  return new LockUnavailableError(`Redis could not be asked for the lock: ${said}`, {
    resources: keys.map(({ resource }) => resource),
    cause,
  });
}
