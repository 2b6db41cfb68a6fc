import type { Event, History, LeaseSeen } from './history.js';

/** What became of a call. */
export interface Call {
  readonly name: string;
  readonly asked: number;
  readonly resources: readonly string[];
  queued: number | undefined;
  /** When it was seen to hold for the first time. */
  held: number | undefined;
  /** What Redis had of its lease. */
  readonly leases: (LeaseSeen & { readonly at: number })[];
  /** By visitor, in the order in which they began. */
  readonly visits: Map<string, { readonly from: number; to: number }>;
  ended: { readonly at: number; readonly code: string } | undefined;
}

/** ms after a fault in which places in line, and leases, may still be lost. */
const AFTERMATH = 3_000;

export function callsOf(events: readonly Event[]): Map<string, Call> {
  const calls = new Map<string, Call>();
  for (const event of events) {
    if (event.what === 'stood still') continue;
    const call = calls.get(event.call);
    if (event.what === 'asked') {
      const { call: name, at: asked, resources } = event;
      calls.set(name, {
        name,
        asked,
        resources,
        queued: undefined,
        held: undefined,
        leases: [],
        visits: new Map(),
        ended: undefined,
      });
    } else if (call === undefined) {
      throw new Error(`The history has something of a call that was not asked for: ${event.call}`);
    } else if (event.what === 'queued') {
      call.queued = event.at;
    } else if (event.what === 'held') {
      call.held ??= event.at;
    } else if (event.what === 'inside') {
      const visit = call.visits.get(event.visitor);
      if (visit) visit.to = event.at;
      else call.visits.set(event.visitor, { from: event.at, to: event.at });
    } else if (event.what === 'lease') {
      call.leases.push(event);
    } else if (event.what === 'ended') {
      call.ended = { at: event.at, code: event.code };
    }
  }
  return calls;
}

/** Whether something that went wrong may have had to do with what happened between two times. */
export function isDisturbed({ events, faults }: History): (from: number, to: number) => boolean {
  const troubles: { from: number; to: number }[] = faults.map(({ from, to }) => ({
    from,
    to: to + AFTERMATH,
  }));
  // The machine was too busy for a process: that alone can cost it a place in line, or a short lease.
  for (const event of events) if (event.what === 'stood still') troubles.push(event);
  return (from, to) => troubles.some((trouble) => trouble.from <= to && trouble.to >= from);
}
