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
});
