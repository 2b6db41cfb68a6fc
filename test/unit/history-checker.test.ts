import { describe, expect, it } from '@jest/globals';
import { check } from '../chaos/checker.js';
import type { Entry, Event, Fault, History, Outcome } from '../chaos/history.js';

/** A call that is served and ends as it should, on the resource r. */
function call(
  name: string,
  times: { asked: number; queued?: number; from: number; to: number; ended?: number },
  fencingToken: number,
): Event[] {
  const { asked, queued = asked, from, to, ended = to } = times;
  const held = {
    what: 'held',
    call: name,
    token: `token of ${name}`,
    fencingTokens: { r: fencingToken },
  } as const;
  return [
    { what: 'asked', call: name, at: asked, resources: ['r'] },
    { what: 'queued', call: name, at: queued },
    { ...held, at: from },
    { ...held, at: to },
    { what: 'ended', call: name, at: ended, code: 'done' },
  ];
}

const commit = (name: string, outcome: Outcome): Event => ({
  what: 'commit',
  call: name,
  commit: `${name}/end`,
  outcome,
});

const entry = (name: string, fencingToken: number, read: number): Entry => ({
  commit: `${name}/end`,
  fencingToken,
  read,
});

function history(
  events: readonly Event[],
  {
    entries = [],
    value = entries.length,
    faults = [],
  }: { entries?: Entry[]; value?: number; faults?: Fault[] } = {},
): History {
  return {
    events,
    faults,
    ledgers: [{ resource: 'r', value, entries }],
    isKilled: (name) => name.startsWith('killed'),
  };
}

const rules = (bad: History) => check(bad).map(({ rule }) => rule);

const first = call('a', { asked: 0, from: 1, to: 5 }, 10);
const second = call('b', { asked: 2, from: 6, to: 9 }, 11);

describe('the checker of histories', () => {
  it('finds nothing in a good one', () => {
    const good = [...first, ...second, commit('a', 'applied'), commit('b', 'applied')];
    expect(check(history(good, { entries: [entry('a', 10, 0), entry('b', 11, 1)] }))).toEqual([]);
  });

  it('finds two holders at a time, also when neither began within the other’s last proof', () => {
    const overlapping = call('b', { asked: 2, from: 4, to: 9 }, 11);
    const later = call('c', { asked: 3, from: 8, to: 8.5 }, 12);
    expect(rules(history([...first, ...overlapping, ...later]))).toEqual(['one holder', 'one holder']);
  });

  it('does not blame anybody for a lock that an operator took away, and blames whoever repeats a number then', () => {
    const overlapping = call('b', { asked: 2, from: 4, to: 9 }, 11);
    const freed = { kind: 'key deleted', from: 3, to: 3.5, resource: 'r' };
    expect(rules(history([...first, ...overlapping], { faults: [freed] }))).toEqual([]);
    const repeating = call('b', { asked: 2, from: 4, to: 9 }, 10);
    expect(rules(history([...first, ...repeating], { faults: [freed] }))).toEqual(['fencing tokens']);
    const elsewhere = { ...freed, resource: 'another' };
    expect(rules(history([...first, ...overlapping], { faults: [elsewhere] }))).toEqual(['one holder']);
  });

  it('finds fencing tokens that are repeated, or lower than one before', () => {
    expect(rules(history([...first, ...call('b', { asked: 2, from: 6, to: 9 }, 10)]))).toEqual([
      'fencing tokens',
    ]);
    expect(rules(history([...first, ...call('b', { asked: 2, from: 6, to: 9 }, 9)]))).toEqual([
      'fencing tokens',
    ]);
  });

  it('finds a lost update', () => {
    const events = [...first, ...second, commit('a', 'applied'), commit('b', 'applied')];
    const entries = [entry('a', 10, 0), entry('b', 11, 0)];
    expect(rules(history(events, { entries, value: 1 }))).toEqual(['no lost update', 'no lost update']);
  });

  it('finds a commit by one that had lost the lock', () => {
    const events = [...first, ...second, commit('a', 'applied'), commit('b', 'applied')];
    const entries = [entry('b', 11, 0), entry('a', 10, 1)];
    expect(rules(history(events, { entries }))).toEqual(['no commit by a loser']);
  });

  it.each<[Outcome, number]>([
    ['applied', 0],
    ['applied', 2],
    ['not applied', 1],
    ['unknown', 2],
  ])('finds that a commit that was said to be %s is there %i times', (outcome, times) => {
    const entries = Array.from({ length: times }, (_, i) => entry('a', 10, i));
    expect(rules(history([...first, commit('a', outcome)], { entries }))).toEqual(['true outcomes']);
  });

  it.each<[Outcome, number]>([
    ['applied', 1],
    ['not applied', 0],
    ['unknown', 0],
    ['unknown', 1],
  ])('accepts that a commit that was said to be %s is there %i times', (outcome, times) => {
    const entries = Array.from({ length: times }, (_, i) => entry('a', 10, i));
    expect(check(history([...first, commit('a', outcome)], { entries }))).toEqual([]);
  });

  it('finds a commit of which nobody was told, unless its process was killed', () => {
    expect(rules(history(first, { entries: [entry('a', 10, 0)] }))).toEqual(['true outcomes']);
    const killed = call('killed.1', { asked: 0, from: 1, to: 5 }, 10).slice(0, -1);
    expect(check(history(killed, { entries: [entry('killed.1', 10, 0)] }))).toEqual([]);
  });

  it('finds one that was passed by in line', () => {
    const passedBy = call('a', { asked: 0, queued: 1, from: 10, to: 11 }, 12);
    const barging = call('b', { asked: 2, from: 6, to: 9 }, 11);
    expect(rules(history([...passedBy, ...barging]))).toEqual(['first come, first served']);
  });

  it('does not call it passing by when the other one may have been first, or a fault may have cost the place', () => {
    const late = call('a', { asked: 0, queued: 3, from: 10, to: 11 }, 12);
    const other = call('b', { asked: 2, from: 6, to: 9 }, 11);
    expect(check(history([...late, ...other]))).toEqual([]);
    const passedBy = call('a', { asked: 0, queued: 1, from: 10, to: 11 }, 12);
    const faults = [{ kind: 'CLIENT KILL', from: 5, to: 5 }];
    expect(check(history([...passedBy, ...other], { faults }))).toEqual([]);
  });

  it('finds a call that was never told, unless its process was killed', () => {
    expect(rules(history(first.slice(0, -1)))).toEqual(['every call ends']);
    const killed = call('killed.1', { asked: 0, from: 1, to: 5 }, 10).slice(0, -1);
    expect(check(history(killed))).toEqual([]);
  });

  describe('of leases', () => {
    const seen = (lease: { told: number; limit?: number; least: number; most: number }): Event => ({
      what: 'lease',
      call: 'a',
      at: 3,
      ...lease,
    });

    it('finds one that ends in Redis before its holder was told, and not one that lasts longer', () => {
      expect(rules(history([...first, seen({ told: 900, least: 390, most: 400 })]))).toEqual(['leases']);
      expect(check(history([...first, seen({ told: 900, least: 895, most: 905 })]))).toEqual([]);
    });

    it('does not call it shorter where an operator took the lock away, and does after any other fault', () => {
      const shorter = [...first, seen({ told: 900, least: 390, most: 400 })];
      const fault = { kind: 'key deleted', from: 1, to: 2 };
      expect(check(history(shorter, { faults: [{ ...fault, resource: 'r' }] }))).toEqual([]);
      expect(rules(history(shorter, { faults: [{ ...fault, resource: 'another' }] }))).toEqual(['leases']);
      expect(rules(history(shorter, { faults: [{ ...fault, kind: 'late requests' }] }))).toEqual(['leases']);
      const before = { ...fault, from: -9, to: -1, resource: 'r' };
      expect(rules(history(shorter, { faults: [before] }))).toEqual(['leases']);
    });

    it('finds one that was shortened and lasts on, unless a fault may have held that up', () => {
      const lasting = [...first, seen({ told: 100, limit: 103, least: 900, most: 910 })];
      expect(rules(history(lasting))).toEqual(['leases']);
      expect(check(history(lasting, { faults: [{ kind: 'late requests', from: 1, to: 2 }] }))).toEqual([]);
    });
  });

  describe('of those who run inside of one call', () => {
    const inside = (visitor: string, at: number, name = 'a'): Event => ({
      what: 'inside',
      call: name,
      at,
      visitor,
    });

    it('finds two at a time', () => {
      const both = [inside('one', 2), inside('other', 3), inside('one', 4), inside('other', 4.5)];
      expect(rules(history([...first, ...both]))).toEqual(['siblings take turns']);
    });

    it('finds one that came while the one before the last was still there', () => {
      const visits = [inside('long', 2), inside('short', 2.1), inside('short', 2.2), inside('late', 3)];
      const bad = history([...first, ...visits, inside('long', 4), inside('late', 5)]);
      expect(rules(bad)).toEqual(['siblings take turns', 'siblings take turns']);
    });

    it('accepts that they take turns, or are inside of different calls', () => {
      const turns = [inside('one', 2), inside('one', 3), inside('other', 3), inside('other', 4)];
      expect(check(history([...first, ...turns]))).toEqual([]);
      const apart = [inside('one', 2), inside('one', 7, 'b'), inside('one', 3), inside('one', 8, 'b')];
      expect(check(history([...first, ...second, ...apart]))).toEqual([]);
    });
  });

  describe('of locks that are lost', () => {
    const lost = first.map((event) => (event.what === 'ended' ? { ...event, code: 'LOCK_LOST' } : event));

    it('finds one that is lost while nothing is broken', () => {
      expect(rules(history(lost))).toEqual(['nothing is lost without a fault']);
      const over = { kind: 'SIGSTOP', from: -9_000, to: -4_000 };
      expect(rules(history(lost, { faults: [over] }))).toEqual(['nothing is lost without a fault']);
    });

    it('accepts it soon after a fault, and where the machine let a process stand still', () => {
      expect(check(history(lost, { faults: [{ kind: 'SIGSTOP', from: -900, to: -400 }] }))).toEqual([]);
      expect(check(history([...lost, { what: 'stood still', from: 1, to: 400 }]))).toEqual([]);
    });

    it('lets a process that stands still excuse a lost place meanwhile, and nothing after it', () => {
      const passedBy = call('a', { asked: 10, queued: 11, from: 20, to: 21 }, 12);
      const barging = call('b', { asked: 12, from: 16, to: 19 }, 11);
      const meanwhile: Event = { what: 'stood still', from: 13, to: 15 };
      expect(check(history([...passedBy, ...barging, meanwhile]))).toEqual([]);
      const before: Event = { what: 'stood still', from: 5, to: 9 };
      expect(rules(history([...passedBy, ...barging, before]))).toEqual(['first come, first served']);
      const overlapping = call('b', { asked: 12, from: 16, to: 20.5 }, 11);
      expect(rules(history([...passedBy, ...overlapping, meanwhile]))).toContain('one holder');
    });
  });

  describe('of a failover', () => {
    const failover = { kind: 'failover', from: 100, to: 200 };
    const before = call('p.1', { asked: 0, from: 1, to: 5 }, 10);
    const soon = call('p.2', { asked: 300, from: 4_000, to: 4_001 }, 11);
    const late = call('p.3', { asked: 5_100, from: 5_900, to: 5_901 }, 12);

    it('finds a process that gets no lock for too long, although others do', () => {
      expect(rules(history([...before, ...late], { faults: [failover] }))).toEqual(['service comes back']);
      const another = call('q.1', { asked: 0, from: 4_000, to: 4_001 }, 11);
      const bad = history([...before, ...another, ...late], { faults: [failover] });
      expect(rules(bad)).toEqual(['service comes back']);
    });

    it('accepts one that has a lock in time, has ended, was started since, or has other faults to bear', () => {
      const faults = [failover];
      expect(check(history([...before, ...soon, ...late], { faults }))).toEqual([]);
      expect(check(history(before, { faults }))).toEqual([]);
      expect(check(history(late, { faults }))).toEqual([]);
      const further = { kind: 'SIGSTOP', from: 3_000, to: 3_100 };
      expect(check(history([...before, ...late], { faults: [failover, further] }))).toEqual([]);
    });
  });

  it('counts commits of work that read nothing, and asks of them only that they come before later holders', () => {
    const alongside = (name: string, fencingToken: number): Entry => ({
      commit: `${name}/end`,
      fencingToken,
    });
    const events = [...first, ...second, commit('a', 'applied'), commit('b', 'applied')];
    const good = [alongside('a', 10), entry('b', 11, 0)];
    expect(check(history(events, { entries: good, value: 1 }))).toEqual([]);
    const bad = [entry('b', 11, 0), alongside('a', 10)];
    expect(rules(history(events, { entries: bad, value: 1 }))).toEqual(['no commit by a loser']);
    const twice = [alongside('a', 10), alongside('a', 10), entry('b', 11, 0)];
    expect(rules(history(events, { entries: twice, value: 1 }))).toEqual(['true outcomes']);
  });
});
