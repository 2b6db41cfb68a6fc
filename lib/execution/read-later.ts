import { isObservable } from 'rxjs';
import { LockConfigurationError } from '../errors/lock.errors.js';

/**
 * How many properties of an object are looked at: a body is among the first ones. Of an object with thousands, V8 makes
 * a list of all names before, which costs as much as writing it as JSON.
 */
const MAX_PROPERTIES = 32;

/** What is read after it was returned. */
interface Body {
  /** A noun with its article. */
  readonly what: string;
  /** Lets go of what it reads from, a file for example. */
  readonly discard?: () => unknown;
}

/** What to do about it, in most cases. */
const ADVICE =
  'Read it to its end before you return, or hold a lock of `locks.acquire(..)` until it has ended';

/**
 * Refuses a result that is read after the method has returned, by then without its lock: a stream, an Observable, a
 * generator, an async iterable, a StreamableFile, a web Response; the result itself, or a property of a plain object.
 * A stream that has ended, or has all of its bytes in memory, is a value like any other.
 *
 * @param observable what to do about an Observable
 * @returns the result
 * @throws LockConfigurationError; what was refused is discarded, since nobody gets it
 */
export function refuseBody(result: unknown, method: string, observable = ADVICE): unknown {
  const body = bodyIn(result);
  if (body === undefined) return result;
  body.discard?.();
  const advice = isObservable(result) ? observable : ADVICE;
  throw new LockConfigurationError(
    `${method}: it returned ${body.what}, which would be read without its lock. ${advice}`,
  );
}

function bodyIn(result: unknown): Body | undefined {
  const itself = bodyOf(result);
  if (itself !== undefined || !isPlainObject(result)) return itself;
  let looked = 0;
  for (const name in result) {
    if (++looked > MAX_PROPERTIES) return undefined;
    const body = bodyOf(result[name]);
    if (body !== undefined) return { ...body, what: `an object whose "${name}" is ${body.what}` };
  }
  return undefined;
}

/** What tells a body. By shape: other copies of rxjs, Nest and undici have classes of their own. */
interface MaybeBody {
  readonly [Symbol.asyncIterator]?: unknown;
  readonly [Symbol.toStringTag]?: unknown;
  readonly pipe?: unknown;
  readonly readable?: unknown;
  readonly readableEnded?: unknown;
  readonly destroyed?: unknown;
  readonly _readableState?: { readonly ended?: unknown };
  readonly getReader?: unknown;
  readonly arrayBuffer?: unknown;
  readonly body?: unknown;
  readonly bodyUsed?: unknown;
  readonly getStream?: unknown;
  readonly getHeaders?: unknown;
  readonly setErrorHandler?: unknown;
  destroy?(): unknown;
  cancel?(): Promise<unknown>;
}

function bodyOf(value: unknown): Body | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
  if (isObservable(value)) return { what: 'an Observable' };
  const it = value as MaybeBody;
  if (typeof it.pipe === 'function' && typeof it.readable === 'boolean') {
    return isComplete(it) ? undefined : { what: 'a stream', discard: () => it.destroy?.() };
  }
  if (typeof it.getReader === 'function') {
    // One that is being read already belongs to its reader, and refuses.
    return { what: 'a stream', discard: () => void it.cancel?.().catch(() => undefined) };
  }
  if (typeof it[Symbol.asyncIterator] === 'function') return { what: 'an async iterable' };
  if (it[Symbol.toStringTag] === 'Generator') return { what: 'a generator' };
  if (typeof it.arrayBuffer === 'function') {
    const body = it.bodyUsed === true ? undefined : bodyOf(it.body);
    return body && { ...body, what: 'a Response with a body' };
  }
  const { getStream, getHeaders, setErrorHandler } = it;
  if ([getStream, getHeaders, setErrorHandler].every((method) => typeof method === 'function')) {
    const body = bodyOf((value as { getStream(): unknown }).getStream());
    return body && { ...body, what: 'a StreamableFile' };
  }
  return undefined;
}

/** Nothing more comes from where it reads: it was read, or all that it has was pushed, as of a StreamableFile of bytes. */
function isComplete({ readable, _readableState }: MaybeBody): boolean {
  return readable === false || _readableState?.ended === true;
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
