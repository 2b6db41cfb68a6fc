/**
 * What workers record, each in a file of its own, written before whatever comes next: a process that is killed leaves
 * all it did. Times are ms of the machine's monotonic clock, which all its processes share.
 */
import { readFileSync } from 'node:fs';

export type Event =
  /** Somebody wants a lock. A call has a number of its own, whatever becomes of it. */
  | {
      readonly what: 'asked';
      readonly call: string;
      readonly at: number;
      readonly resources: readonly string[];
    }
  /** Redis has answered something that was asked later on the same connection: the call has its place in line by now. */
  | { readonly what: 'queued'; readonly call: string; readonly at: number }
  /** The lock was held at that time. */
  | {
      readonly what: 'held';
      readonly call: string;
      readonly at: number;
      readonly token: string;
      /** By resource. */
      readonly fencingTokens: Readonly<Record<string, number>>;
    }
  /** Work that runs inside of the call, beside others of its kind, had the lock at that time. */
  | { readonly what: 'inside'; readonly call: string; readonly at: number; readonly visitor: string }
  /** What Redis has of a lease. */
  | ({ readonly what: 'lease'; readonly call: string; readonly at: number } & LeaseSeen)
  /** What the caller was told about what it wanted to be committed, under a name of its own. */
  | { readonly what: 'commit'; readonly call: string; readonly commit: string; readonly outcome: Outcome }
  | { readonly what: 'ended'; readonly call: string; readonly at: number; readonly code: string }
  /** The whole process did nothing meanwhile: the machine was busy with something else. */
  | { readonly what: 'stood still'; readonly from: number; readonly to: number };

/** Until when a lease lasts, as it was said and as it is. */
export interface LeaseSeen {
  /** Its holder counts on it, or somebody else has to wait, until then at least. */
  readonly told: number;
  /** It is to end by then, at the latest. */
  readonly limit?: number;
  /** Redis has it end, or it has ended there, between these two. */
  readonly least: number;
  readonly most: number;
}

export type Outcome = 'applied' | 'not applied' | 'unknown';

/** Something was done to Redis, to a worker or to the network, from then until it was as before. */
export interface Fault {
  readonly kind: string;
  readonly from: number;
  readonly to: number;
  /** The resource that an operator has freed. */
  readonly resource?: string;
}

/** What is in Redis in the end, for a resource. */
export interface Ledger {
  readonly resource: string;
  /** Counts the commits. */
  readonly value: number;
  /** What each commit has added, in the order in which Redis applied them. */
  readonly entries: readonly Entry[];
}

export interface Entry {
  readonly commit: string;
  readonly fencingToken: number;
  /** The value that the work read before; it committed one more. Without it, the work left the value alone. */
  readonly read?: number;
}

export interface History {
  readonly events: readonly Event[];
  readonly faults: readonly Fault[];
  readonly ledgers: readonly Ledger[];
  /** Calls of workers that were killed, of which nobody knows what they were told. */
  readonly isKilled: (call: string) => boolean;
}

export function timeNow(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000;
}

/** A killed process may have left half a line. */
export function readEvents(file: string): Event[] {
  const lines = readFileSync(file, 'utf8').split('\n');
  const complete = lines.slice(0, -1);
  return complete.map((line) => JSON.parse(line) as Event);
}
