/** Decides whether what workers saw, and what is in Redis, can have come of locks that keep their promises. */
import { callsOf, isDisturbed } from './calls.js';
import type { Call } from './calls.js';
import type { Entry, Event, Fault, History, Ledger } from './history.js';
import { checkLeases, checkLosses, checkService, checkVisits } from './lease-rules.js';

export interface Violation {
  readonly rule:
    | 'one holder'
    | 'fencing tokens'
    | 'no lost update'
    | 'no commit by a loser'
    | 'true outcomes'
    | 'first come, first served'
    | 'every call ends'
    | 'leases'
    | 'siblings take turns'
    | 'nothing is lost without a fault'
    | 'service comes back';
  readonly resource?: string;
  readonly message: string;
}

/** A lock that was held, for as long as its holder can prove. */
interface Hold {
  readonly call: string;
  readonly token: string;
  readonly fencingToken: number;
  readonly from: number;
  to: number;
}

export function check(history: History): Violation[] {
  const calls = callsOf(history.events);
  const holds = holdsOf(history.events);
  return [
    ...[...holds].flatMap(([resource, held]) => checkHolds(resource, held, history.faults)),
    ...history.ledgers.flatMap(checkLedger),
    ...checkOutcomes(history),
    ...checkOrder(calls, history),
    ...checkEnds(calls, history),
    ...checkLeases(calls, history),
    ...checkVisits(calls),
    ...checkLosses(calls, history),
    ...checkService(history),
  ];
}

/** By resource, in the order in which they began. */
function holdsOf(events: readonly Event[]): Map<string, Hold[]> {
  const holds = new Map<string, Map<string, Hold>>();
  for (const event of events) {
    if (event.what !== 'held') continue;
    const { call, at, token } = event;
    for (const [resource, fencingToken] of Object.entries(event.fencingTokens)) {
      const byToken = holds.get(resource) ?? new Map<string, Hold>();
      holds.set(resource, byToken);
      const hold = byToken.get(token) ?? { call, token, fencingToken, from: at, to: at };
      hold.to = Math.max(hold.to, at);
      byToken.set(token, hold);
    }
  }
  return new Map(
    [...holds].map(([resource, byToken]) => [
      resource,
      [...byToken.values()].sort((one, other) => one.from - other.from),
    ]),
  );
}

/** Nobody holds while another one does, and each has a higher number than all before. */
function checkHolds(resource: string, holds: readonly Hold[], faults: readonly Fault[]): Violation[] {
  const violations: Violation[] = [];
  const freed = faults.filter((fault) => fault.resource === resource);
  const owners = new Map<number, Hold>();
  let last: Hold | undefined;
  for (const hold of holds) {
    const same = owners.get(hold.fencingToken);
    if (same) {
      const message = `${hold.call} and ${same.call} have the same fencing token ${hold.fencingToken}`;
      violations.push({ rule: 'fencing tokens', resource, message });
    }
    owners.set(hold.fencingToken, hold);
    const before = last;
    if (before === undefined || hold.to > before.to) last = hold;
    if (before === undefined) continue;
    // An operator who takes a lock away breaks this, and knows it.
    if (freed.some(({ from, to }) => to >= before.from && from <= hold.from)) continue;
    if (hold.from < before.to) {
      const message = `${hold.call} held at ${hold.from}, and ${before.call} from ${before.from} to ${before.to}`;
      violations.push({ rule: 'one holder', resource, message });
    } else if (hold.fencingToken < before.fencingToken) {
      const message = `${hold.call} has ${hold.fencingToken}, and ${before.call} before it ${before.fencingToken}`;
      violations.push({ rule: 'fencing tokens', resource, message });
    }
  }
  return violations;
}

/** Each commit has read what the one before it has written, and none comes after one of a later holder. */
function checkLedger({ resource, value, entries }: Ledger): Violation[] {
  const violations: Violation[] = [];
  const updates = entries.filter(({ read }) => read !== undefined);
  if (value !== updates.length) {
    const message = `the value is ${value} after ${updates.length} commits`;
    violations.push({ rule: 'no lost update', resource, message });
  }
  let highest: Entry | undefined;
  updates.forEach(({ commit, read }, place) => {
    if (read === place) return;
    const message = `${commit} was applied as number ${place + 1}, and had read ${read}`;
    violations.push({ rule: 'no lost update', resource, message });
  });
  for (const entry of entries) {
    if (highest && entry.fencingToken < highest.fencingToken) {
      const message = `${entry.commit} was applied after ${highest.commit}, which had the lock later`;
      violations.push({ rule: 'no commit by a loser', resource, message });
    }
    if (highest === undefined || entry.fencingToken > highest.fencingToken) highest = entry;
  }
  return violations;
}

/** What was said to be applied is there, once; what was said not to be is not. */
function checkOutcomes({ events, ledgers, isKilled }: History): Violation[] {
  const violations: Violation[] = [];
  const times = new Map<string, number>();
  for (const { entries } of ledgers) {
    for (const { commit } of entries) times.set(commit, (times.get(commit) ?? 0) + 1);
  }
  const told = new Set<string>();
  for (const event of events) {
    if (event.what !== 'commit') continue;
    told.add(event.commit);
    const applied = times.get(event.commit) ?? 0;
    const isTrue =
      event.outcome === 'unknown' ? applied <= 1 : applied === (event.outcome === 'applied' ? 1 : 0);
    if (isTrue) continue;
    const message = `${event.commit} was said to be ${event.outcome}, and is there ${applied} times`;
    violations.push({ rule: 'true outcomes', message });
  }
  for (const [commit, applied] of times) {
    if (told.has(commit) || (isKilled(commit) && applied === 1)) continue;
    const message = `${commit} is there ${applied} times, and nobody was told`;
    violations.push({ rule: 'true outcomes', message });
  }
  return violations;
}

/** Who was in line before another one asked has its turn first, unless a fault may have cost it its place. */
function checkOrder(calls: ReadonlyMap<string, Call>, history: History): Violation[] {
  const byResource = new Map<string, Call[]>();
  for (const call of calls.values()) {
    const [resource, ...others] = call.resources;
    if (resource === undefined || others.length > 0 || call.held === undefined) continue;
    const served = byResource.get(resource);
    if (served) served.push(call);
    else byResource.set(resource, [call]);
  }
  const disturbed = isDisturbed(history);
  const violations: Violation[] = [];
  for (const [resource, served] of byResource) {
    // The one that asked last of all those served so far: whoever was in line before that was passed by.
    let latest: Call | undefined;
    for (const call of served.sort((one, other) => (one.held ?? 0) - (other.held ?? 0))) {
      if (
        latest &&
        call.queued !== undefined &&
        call.queued < latest.asked &&
        !disturbed(call.asked, call.held ?? call.asked)
      ) {
        const message = `${latest.name} asked at ${latest.asked}, after ${call.name} had been in line, and came first`;
        violations.push({ rule: 'first come, first served', resource, message });
      }
      if (latest === undefined || call.asked > latest.asked) latest = call;
    }
  }
  return violations;
}

function checkEnds(calls: ReadonlyMap<string, Call>, { isKilled }: History): Violation[] {
  return [...calls.values()]
    .filter(({ name, ended }) => ended === undefined && !isKilled(name))
    .map(({ name, asked, resources }) => ({
      rule: 'every call ends',
      message: `${name} asked for ${resources.join(', ')} at ${asked}, and was never told`,
    }));
}
