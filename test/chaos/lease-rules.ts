/** What the checker proves of leases, of work inside of a lock, and of service after a failover. */
import { isDisturbed } from './calls.js';
import type { Call } from './calls.js';
import type { Violation } from './checker.js';
import type { History } from './history.js';

/** ms that clocks of two processes may be apart: they read the same one, but Redis counts in whole ms. */
const ROUNDING = 2;
/** ms from a failover on in which every process has to get a lock again. */
const RECOVERY = 5_000;

/** Nobody is told that a lease lasts for longer than it does in Redis; and one that was shortened ends. */
export function checkLeases(calls: ReadonlyMap<string, Call>, history: History): Violation[] {
  const disturbed = isDisturbed(history);
  const violations: Violation[] = [];
  for (const { name, resources, asked, leases } of calls.values()) {
    const resource = resources[0] ?? '';
    const freed = history.faults.filter((fault) => fault.resource === resource && fault.to >= asked);
    for (const { at, told, limit, least, most } of leases) {
      if (most < told - ROUNDING && !freed.some(({ from }) => from <= at)) {
        const message = `${name} had until ${told}, it was said, and in Redis until ${most}; at ${at}`;
        violations.push({ rule: 'leases', resource, message });
      }
      if (limit !== undefined && least > limit + ROUNDING && !disturbed(asked, at)) {
        const message = `${name} was to end by ${limit}, and lasts until ${least} in Redis; at ${at}`;
        violations.push({ rule: 'leases', resource, message });
      }
    }
  }
  return violations;
}

/** Of those who run inside of one call, one at a time has its lock. */
export function checkVisits(calls: ReadonlyMap<string, Call>): Violation[] {
  const violations: Violation[] = [];
  for (const { name, resources, visits } of calls.values()) {
    let last: { readonly visitor: string; readonly to: number } | undefined;
    for (const [visitor, { from, to }] of visits) {
      if (last && from < last.to) {
        const message = `inside of ${name}, ${visitor} came at ${from}, and ${last.visitor} was there until ${last.to}`;
        violations.push({ rule: 'siblings take turns', resource: resources[0] ?? '', message });
      }
      if (last === undefined || to > last.to) last = { visitor, to };
    }
  }
  return violations;
}

/** No lock is lost while nothing is broken. */
export function checkLosses(calls: ReadonlyMap<string, Call>, history: History): Violation[] {
  const disturbed = isDisturbed(history);
  return [...calls.values()]
    .filter(({ asked, ended }) => ended?.code === 'LOCK_LOST' && !disturbed(asked, ended.at))
    .map(({ name, resources, ended }) => ({
      rule: 'nothing is lost without a fault',
      resource: resources[0] ?? '',
      message: `${name} was told at ${ended?.at} that it had lost its lock`,
    }));
}

/** After a failover, each process that was at work before has a lock again in time, where nothing else goes wrong. */
export function checkService({ events, faults }: History): Violation[] {
  const processes = new Map<string, number[]>();
  const held = new Map<string, number[]>();
  for (const event of events) {
    if (event.what === 'stood still' || event.what === 'commit') continue;
    const process = event.call.slice(0, event.call.lastIndexOf('.'));
    add(processes, process, event);
    if (event.what === 'held') add(held, process, event);
  }
  const violations: Violation[] = [];
  for (const fault of faults.filter(({ kind }) => kind === 'failover')) {
    const end = fault.to + RECOVERY;
    if (faults.some((other) => other !== fault && other.from < end && other.to > fault.from)) continue;
    for (const [process, times] of processes) {
      const wasAtWork = times.some((at) => at < fault.from) && times.some((at) => at > end);
      const isBack = held.get(process)?.some((at) => at > fault.to && at <= end);
      if (!wasAtWork || isBack) continue;
      const message = `${process} had no lock for ${RECOVERY} ms after the failover at ${fault.from}`;
      violations.push({ rule: 'service comes back', message });
    }
  }
  return violations;
}

function add(times: Map<string, number[]>, process: string, { at }: { readonly at: number }): void {
  const known = times.get(process);
  if (known) known.push(at);
  else times.set(process, [at]);
}
