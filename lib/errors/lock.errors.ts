import { HttpException, HttpStatus } from '@nestjs/common';

/** Set on every error of this package, so that a second installed copy of it still recognises them. */
const BRAND: unique symbol = Symbol.for('nestjs-redis-lock.error');

export type LockErrorCode =
  | 'LOCK_NOT_ACQUIRED'
  | 'LOCK_LOST'
  | 'LOCK_CONFLICT'
  | 'LOCK_UNAVAILABLE'
  | 'LOCK_TRANSACTION_FAILED'
  | 'LOCK_OUTCOME_UNKNOWN'
  | 'LOCK_KEY_INVALID'
  | 'LOCK_NO_SCOPE'
  | 'LOCK_CONFIGURATION';

/** Why a lock was not to be had. */
export type LockNotAcquiredReason = 'busy' | 'timeout' | 'aborted' | 'queue_full' | 'shutdown';

export interface LockErrorDetails {
  /** The resources of the call, as they were asked for. */
  resources?: readonly string[];
  /** What brought this about, Redis' own error for example. */
  cause?: unknown;
}

/**
 * `instanceof` by brand and code, which also holds between two installed copies of this package. A subclass
 * without a code of its own is recognised by its prototype, as usual.
 */
function isInstance(type: object, value: unknown): boolean {
  if (typeof value !== 'object' || value === null || !(BRAND in value)) return false;
  if (type === LockError) return true;
  return Object.hasOwn(type, 'code')
    ? (value as LockError).code === (type as { code?: string }).code
    : Function.prototype[Symbol.hasInstance].call(type, value);
}

/** Anything this package rejects with. `error instanceof LockError` holds for all of the classes below. */
export abstract class LockError extends Error {
  /** Stable: compare this rather than the message. */
  abstract readonly code: LockErrorCode;
  readonly resources: readonly string[];
  /** @internal */
  readonly [BRAND] = true;

  constructor(message: string, details: LockErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.resources = details.resources ?? [];
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return isInstance(this, value);
  }
}

/**
 * The errors that are an answer to a caller over HTTP. They extend Nest's HttpException, so that an application's
 * own filters see them; their body names the code and never the resource.
 */
abstract class LockHttpError extends HttpException implements LockError {
  abstract readonly code: LockErrorCode;
  readonly resources: readonly string[];
  /** @internal */
  readonly [BRAND] = true;

  constructor(
    message: string,
    answer: { status: HttpStatus; error: string; message: string; code: LockErrorCode },
    details: LockErrorDetails,
  ) {
    const { status, ...body } = answer;
    super(
      { statusCode: status, ...body },
      status,
      details.cause === undefined ? {} : { cause: details.cause },
    );
    this.message = message;
    this.name = new.target.name;
    this.resources = details.resources ?? [];
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return isInstance(this, value);
  }
}

const REFUSALS: Record<LockNotAcquiredReason, string> = {
  busy: 'it is held by someone else',
  timeout: 'it was not free in time',
  aborted: 'the caller stopped waiting for it',
  queue_full: 'too many are waiting for it',
  shutdown: 'the application is shutting down',
};

/** The lock is not to be had: 423 (busy, timeout, aborted) or 503 (queue_full, shutdown). */
export class LockNotAcquiredError extends LockHttpError {
  static readonly code = 'LOCK_NOT_ACQUIRED';
  readonly code = LockNotAcquiredError.code;
  readonly reason: LockNotAcquiredReason;
  /** ms after which a new try makes sense, where that is known. */
  readonly retryAfter: number | undefined;

  constructor(reason: LockNotAcquiredReason, details: LockErrorDetails & { retryAfter?: number } = {}) {
    const overloaded = reason === 'queue_full' || reason === 'shutdown';
    super(
      `The lock on ${quote(details.resources)} was not acquired: ${REFUSALS[reason]}`,
      {
        status: overloaded ? HttpStatus.SERVICE_UNAVAILABLE : HttpStatus.LOCKED,
        error: overloaded ? 'Service Unavailable' : 'Locked',
        message: `The resource is locked: ${REFUSALS[reason]}`,
        code: LockNotAcquiredError.code,
      },
      details,
    );
    this.reason = reason;
    this.retryAfter = details.retryAfter;
  }
}

/** The lock was lost before the work under it was committed: nothing of the refused commit was applied. 409. */
export class LockLostError extends LockHttpError {
  static readonly code = 'LOCK_LOST';
  readonly code = LockLostError.code;

  constructor(details: LockErrorDetails & { reason?: string } = {}) {
    super(
      `The lock on ${quote(details.resources)} was lost${details.reason ? `: ${details.reason}` : ''}`,
      {
        status: HttpStatus.CONFLICT,
        error: 'Conflict',
        message: 'The lock was lost before the work was done',
        code: LockLostError.code,
      },
      details,
    );
  }
}

/** A key given to `watch()` changed in every try: nothing was applied. 409. */
export class LockConflictError extends LockHttpError {
  static readonly code = 'LOCK_CONFLICT';
  readonly code = LockConflictError.code;

  constructor(message: string, details: LockErrorDetails = {}) {
    super(
      message,
      {
        status: HttpStatus.CONFLICT,
        error: 'Conflict',
        message: 'The data was changed by someone else meanwhile',
        code: LockConflictError.code,
      },
      details,
    );
  }
}

/** Redis is down, refused, denied a command or did not answer in time; `cause` has its word. 503. */
export class LockUnavailableError extends LockHttpError {
  static readonly code = 'LOCK_UNAVAILABLE';
  readonly code = LockUnavailableError.code;

  constructor(message: string, details: LockErrorDetails = {}) {
    super(
      message,
      {
        status: HttpStatus.SERVICE_UNAVAILABLE,
        error: 'Service Unavailable',
        message: 'Locking is not available at the moment',
        code: LockUnavailableError.code,
      },
      details,
    );
  }
}

/** A queued command that Redis refused, or that failed inside EXEC. */
export interface FailedCommand {
  /** Its place among the queued commands, from 0. */
  readonly index: number;
  readonly command: string;
  readonly error: Error;
}

/**
 * The transaction failed. `applied: 'none'`: it was refused as a whole. `applied: 'partial'`: the commands in
 * `failures` failed inside EXEC and the others stand, since Redis does not roll back.
 */
export class LockTransactionError extends LockError {
  static readonly code = 'LOCK_TRANSACTION_FAILED';
  readonly code = LockTransactionError.code;
  readonly applied: 'none' | 'partial';
  readonly failures: readonly FailedCommand[];
  /** Every reply in the order of the commands, the failed ones as errors; empty when nothing was applied. */
  readonly replies: readonly unknown[];

  constructor(
    message: string,
    details: LockErrorDetails & {
      applied: 'none' | 'partial';
      failures?: readonly FailedCommand[];
      replies?: readonly unknown[];
    },
  ) {
    super(message, details);
    this.applied = details.applied;
    this.failures = details.failures ?? [];
    this.replies = details.replies ?? [];
  }
}

/** Redis was not heard from until the lease's end: whether the commit was applied cannot be told. */
export class LockOutcomeUnknownError extends LockError {
  static readonly code = 'LOCK_OUTCOME_UNKNOWN';
  readonly code = LockOutcomeUnknownError.code;
}

/** A key template got a value that cannot be a key. */
export class LockKeyError extends LockError {
  static readonly code = 'LOCK_KEY_INVALID';
  readonly code = LockKeyError.code;
}

/** LockContext was used outside of a lock, or after the lock's scope had ended. */
export class LockScopeError extends LockError {
  static readonly code = 'LOCK_NO_SCOPE';
  readonly code = LockScopeError.code;
}

/** An option, a decorator or a resource name is wrong. */
export class LockConfigurationError extends LockError {
  static readonly code = 'LOCK_CONFIGURATION';
  readonly code = LockConfigurationError.code;
}

function quote(resources: readonly string[] = []): string {
  return resources.map((resource) => `"${resource}"`).join(', ') || 'the resource';
}
