/** What the lock scripts are asked, and what they answer, as the library sees it. */
import type { Instant } from './instant.js';
import type { ResourceKeys } from './lock-keys.js';

/** A wish to wait: for how many ms the place may be needed, and how many waiters there may be. */
export interface Place {
  /** '0' at first, then what the last answer said. */
  readonly ticket: string;
  readonly neededFor: number;
  readonly maxWaiters: number;
}

export type AcquireReply =
  | {
      readonly granted: true;
      readonly fencingTokens: readonly number[];
      readonly placeLost: boolean;
      /** Names of the waiters of this client that come next, where the claim had a place in line. */
      readonly run: readonly string[];
    }
  | {
      readonly granted: false;
      /** The place was not there any more: those of other waiters of this client may be gone as well. */
      readonly placeLost: boolean;
      /** ms the holder's lease has left, where it has an end. */
      readonly retryAfter: number | undefined;
      /** The place in the queue, if one was asked for; undefined when all are taken. */
      readonly ticket: string | undefined;
      /** Of the last grant before this answer, where a place was asked for and Redis knows of one. */
      readonly lastFencingToken: number | undefined;
      /** What comes right before a new place, if it is of this client: the name of the last one in line, or 'ours', the holder. */
      readonly before: string | undefined;
    };

/** A lock that is held, as an operator sees it. */
export interface LockState {
  /** As its keys have it: one of over 512 bytes is shown by its start and a hash, which `inspect` and `forceRelease` take. */
  readonly resource: string;
  /** With which it was taken, if there is one: its keys are `lock:{slot}:resource`. */
  readonly slot: string | undefined;
  /** The token of the holder; '' where another program has put something there that is no string. */
  readonly holder: string;
  /** 0 where Redis does not know it. */
  readonly fencingToken: number;
  /** ms the lease has left without renewal; Infinity if somebody has set the key without an end. */
  readonly ttl: number;
  /** How many wait for it, of all processes; 0 where the key of the queue is none. */
  readonly waiters: number;
}

/** A waiter of this client that got the lock when another one gave it up. */
export interface HandedOver {
  readonly token: string;
  readonly keys: ResourceKeys;
  readonly fencingToken: number;
  /** Taken before the request was sent: its lease counts from there. */
  readonly sent: Instant;
  /** Names of those that come next, before any of other clients. */
  readonly run: readonly string[];
}

/** What a release came to; 'unclear': it may have been ours, and released by the same request sent twice. */
export type Release = 'released' | 'not ours' | 'unclear';

/** What Redis says of a lock that was passed on here: what the release came to, and who comes next, see HandedOver. */
export interface PassedOn {
  readonly release: Release;
  readonly run: readonly string[];
}

export type Renewal = 'renewed' | 'lost' | 'failed';

/** What became of a commit whose reply is missing; 'gone': not applied, and it never will be. */
export type Verdict = 'committed' | 'gone' | 'unknown';

export function decodeRun(run: unknown): readonly string[] {
  return run === undefined || run === '' ? [] : String(run).split(' ');
}

/** @returns how many resources were given up, and what handOver adds, see script-parts.ts */
export function decodeRelease(reply: unknown): {
  readonly released: number;
  readonly handedOver: readonly (string | number)[];
} {
  if (!Array.isArray(reply)) return { released: Number(reply), handedOver: [] };
  const [released, ...handedOver] = reply as (string | number)[];
  return { released: Number(released), handedOver };
}

/** @returns what it came to; whether the token had neither the lock nor a place; and what handOver adds */
export function decodeBurn(reply: unknown): {
  readonly verdict: Verdict;
  readonly placeLost: boolean;
  readonly handedOver: readonly (string | number)[];
} {
  const [verdict, placeLost, ...handedOver] = reply as [Verdict, unknown, ...(string | number)[]];
  return { verdict, placeLost: Number(placeLost) === 1, handedOver };
}

/** @returns how many were ours; whether it has to be said once more, until the next in line has heard of it */
export function decodeExtend(reply: unknown): { readonly ours: number; readonly more: boolean } {
  const [ours, more] = reply as unknown[];
  return { ours: Number(ours), more: Number(more) === 1 };
}

export function decodePassOn(reply: unknown): { readonly isOurs: boolean; readonly run: readonly string[] } {
  const [ours, run] = reply as unknown[];
  return { isOurs: Number(ours) === 1, run: decodeRun(run) };
}

export function decodeState(reply: unknown, { resource, slot }: ResourceKeys): LockState | null {
  const [holder, ttl, last, waiters] = reply as unknown[];
  if (holder === undefined || holder === null) return null;
  const fencingToken = Number(last ?? 0);
  return {
    resource,
    slot,
    holder: String(holder),
    fencingToken: Number.isSafeInteger(fencingToken) && fencingToken > 0 ? fencingToken : 0,
    ttl: Number(ttl) < 0 ? Infinity : Number(ttl),
    waiters: Number(waiters),
  };
}

/** @param keys how many resources were asked for */
export function decodeAcquire(reply: unknown, keys = 1): AcquireReply {
  if (!Array.isArray(reply)) {
    const fencingToken = Number(reply ?? 0);
    if (fencingToken > 0) return { granted: true, fencingTokens: [fencingToken], placeLost: false, run: [] };
    throw new TypeError(`Redis' answer to a wish for a lock cannot be read: ${String(reply)}`);
  }
  const [granted, ...rest] = reply as (number | string)[];
  if (Number(granted) === 1) {
    const [lost, ...fencingTokens] = rest.slice(0, keys + 1).map(Number);
    const run = decodeRun(rest[keys + 1]);
    return { granted: true, fencingTokens, placeLost: lost === 1, run };
  }
  const [left = -1, ticket, lost, last, before] = rest;
  return {
    granted: false,
    retryAfter: Number(left) >= 0 ? Number(left) : undefined,
    ticket: ticket === undefined ? undefined : String(ticket),
    placeLost: Number(lost) === 1,
    lastFencingToken: Number(last) > 0 ? Number(last) : undefined,
    before: before === undefined ? undefined : String(before),
  };
}
