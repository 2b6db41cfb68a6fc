/** Builds of the library with a promise taken out, to see that the checker misses it. */
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ownBuild } from './crew.js';

interface Mutation {
  readonly what: string;
  /** Compiled. */
  readonly file: string;
  /** Stands there once. */
  readonly find: string | RegExp;
  readonly replace: string;
}

export const MUTATIONS: Readonly<Record<string, Mutation>> = {
  'no-guard': {
    what: 'a commit passes whoever has the lock',
    file: 'commit-scripts.js',
    find: 'local try, fence, pass',
    // Otherwise the library finds out when it tries its connection, and commits nothing.
    replace: "if ARGV[4] ~= 'nobody:0:0' then return 1 end\n  local try, fence, pass",
  },
  'unfair-queue': {
    what: 'whoever came last is served first',
    file: 'script-parts.js',
    find: "call('ZRANGE', queue, 0, ${LOOK - 1})",
    replace: "call('ZREVRANGE', queue, 0, ${LOOK - 1})",
  },
  'no-renewal': {
    what: 'leases are believed to be renewed, and are not',
    file: 'lock-scripts.js',
    find: 'local could, why = pcall(lengthen, owner, ttl)',
    replace: 'local could, why = true',
  },
  'short-renewals': {
    what: 'a renewal makes a lease shorter than its holder is told',
    file: 'lock-scripts.js',
    find: 'tonumber(ARGV[a + 1])', // of RENEW
    replace: 'math.floor(tonumber(ARGV[a + 1]) / 2)',
  },
  'repeated-fencing-tokens': {
    what: 'a grant has the number of the one before',
    file: 'script-parts.js',
    find: 'if not number then',
    replace: 'number = last\n    if not number then',
  },
  'endless-lease': {
    what: 'a holder never stops to believe in its lease',
    file: '../lock/lease.js',
    find: 'elapsedSince(this.measuredFrom));\n    }',
    replace: '0);\n    }',
  },
  'no-turns': {
    what: 'work inside of a scope does not wait for its turn',
    file: '../transaction/take-turns.js',
    find: /(?<=export async function takeTurns\([^\n]*\) \{\n)/,
    replace: 'return;\n',
  },
};

/**
 * @returns the folder of the build
 * @throws when there is no such mutation, or the library has changed under it
 */
export async function mutate(name: string): Promise<{ folder: string; remove(): Promise<void> }> {
  const mutation = MUTATIONS[name];
  if (mutation === undefined) {
    throw new Error(`There is no mutation "${name}"; there are ${Object.keys(MUTATIONS).join(', ')}`);
  }
  const folder = join(ownBuild(), '..', `dist-${name}`);
  await rm(folder, { recursive: true, force: true });
  await cp(ownBuild(), folder, { recursive: true });
  const file = join(folder, 'lib/redis', mutation.file);
  const text = await readFile(file, 'utf8');
  if (text.split(mutation.find).length !== 2) throw new Error(`"${mutation.find}" is not in ${file} once`);
  await writeFile(
    file,
    text.replace(mutation.find, () => mutation.replace),
  );
  return { folder, remove: () => rm(folder, { recursive: true, force: true }) };
}
