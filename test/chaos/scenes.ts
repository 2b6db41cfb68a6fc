/** What a round is about: who does what, and what goes wrong. */
import { KINDS } from './workload.js';
import type { Kinds } from './workload.js';
import type { DeedName } from './nemesis.js';

export interface Scene {
  /** What workers do, and how often; where it is several, the calls that one makes at a time are of one each, in turn. */
  readonly kinds: Kinds | readonly Kinds[];
  /** What goes wrong, in an order that the seed decides. Default: everything. */
  readonly deeds?: readonly DeedName[];
  /** ms from the start without any of it. Long enough for order to show, which a fault disturbs for a while. */
  readonly quiet: number;
  /** ms between two of them, at least and at most. */
  readonly pauses: readonly [number, number];
  /** ms, of the library. Default: the worker's. */
  readonly commandTimeout?: number;
  /** Calls that each worker makes at a time. Default: 6. */
  readonly loops?: number;
  /** How many workers there are. Default: 4. */
  readonly members?: number;
  /** That they all want. Default: 3. */
  readonly resources?: number;
  /** Only some of the workers are beyond the network, or all of them. */
  readonly beyond: 'half' | 'all';
  /** ms that everything takes on the network, in each direction. Default: 0. */
  readonly latency?: number;
}

const EVERYTHING = 'everything';

/** By the name that `--only` takes. */
export const SCENES: Readonly<Record<string, Scene>> = {
  [EVERYTHING]: { kinds: KINDS, quiet: 4_500, pauses: [20, 600], beyond: 'half' },
  // Requests that arrive late, also when the library has made another connection meanwhile, and sent them again there.
  'late-renewals': {
    kinds: { stretch: 6, min_hold: 2, hold: 1, at_once: 1 },
    deeds: ['late requests', 'late requests', 'SCRIPT FLUSH', 'CLIENT KILL'],
    quiet: 1_000,
    pauses: [100, 800],
    commandTimeout: 300,
    loops: 3,
    beyond: 'all',
  },
  // Whoever waits for several has to know which of them an answer is about that comes late.
  'several-resources': {
    // Some of each at any time: commits under the first one, and a holder of the last one that takes its time.
    kinds: [{ slow: 1 }, { several: 1 }, { brief: 1 }, { brief: 1 }],
    loops: 24,
    members: 1,
    resources: 8,
    deeds: ['late answers', 'late answers', 'late answers', 'late requests'],
    quiet: 500,
    pauses: [0, 100],
    commandTimeout: 1_500,
    beyond: 'all',
  },
  forger: {
    kinds: { update: 5, hold: 5, several: 1, at_once: 1, impatient: 1 },
    deeds: ['forged messages', 'forged messages', 'forged messages', 'CLIENT PAUSE'],
    quiet: 500,
    pauses: [20, 500],
    beyond: 'half',
  },
  // Long pauses: service has to be back after a failover, and nothing else may be to blame.
  failover: {
    kinds: { update: 50, twice: 8, hold: 13, watch: 4, at_once: 4, pair: 4, long: 1 },
    deeds: ['failover'],
    quiet: 1_000,
    pauses: [5_500, 5_500],
    beyond: 'half',
  },
  siblings: {
    kinds: { siblings: 8, update: 2, hold: 1, at_once: 1 },
    deeds: ['late answers', 'network delay'],
    quiet: 5_000,
    pauses: [300, 1_500],
    beyond: 'half',
  },
  // Nothing goes wrong: no lease may be lost.
  'overlapping-commits': {
    kinds: { overlap: 1 },
    deeds: [],
    quiet: 0,
    pauses: [0, 0],
    loops: 2,
    beyond: 'half',
    latency: 5,
  },
};

/** Every other round is about everything, those between about one thing each, in turn. */
export function sceneOf(round: number, only?: string): { readonly name: string; readonly scene: Scene } {
  const others = Object.keys(SCENES).filter((name) => name !== EVERYTHING);
  const inTurn = round % 2 === 0 ? EVERYTHING : (others[((round - 1) / 2) % others.length] as string);
  const name = only ?? inTurn;
  const scene = SCENES[name];
  if (scene === undefined)
    throw new Error(`There is no "${name}"; there are ${Object.keys(SCENES).join(', ')}`);
  return { name, scene };
}
