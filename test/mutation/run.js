/**
 * Puts one small mistake after the other into a copy of the library, and runs the tests that have to notice it.
 *
 *   npm run test:mutation                all of them
 *   npm run test:mutation -- lease       those whose name contains "lease"
 *
 * The mistakes are data, in the files beside this one. One that no test notices, or that does not fit the code any
 * more, fails the run. Two run at a time, each in a copy of its own.
 */
import { execFile } from 'node:child_process';
import { cp, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, '../..');
/** ms after which a run counts as noticed: a mistake may have it wait for ever. */
const LONGEST_RUN = 180_000;

const names = (await readdir(here)).filter((name) => name.endsWith('.mutants.json')).sort();
const files = await Promise.all(
  names.map(async (name) => JSON.parse(await readFile(join(here, name), 'utf8'))),
);
const wanted = process.argv.slice(2);
const mutants = files.flat().filter(({ what }) => wanted.every((word) => what.includes(word)));
const queue = [...mutants];
const unnoticed = [];
await tryOutWithoutMistake();
await Promise.all(Array.from({ length: Math.min(2, availableParallelism()) }, work));
for (const { what, why } of unnoticed) process.stdout.write(`not noticed: ${what} (${why})\n`);
process.stdout.write(`${mutants.length - unnoticed.length} passed, ${unnoticed.length} failed\n`);
process.exitCode = unnoticed.length > 0 ? 1 : 0;

/** A test that fails in any case would notice everything. */
async function tryOutWithoutMistake() {
  for (const config of new Set(mutants.map((mutant) => mutant.config))) {
    const tests = new Set(mutants.filter((each) => each.config === config).flatMap((each) => each.tests));
    const { failed, output } = await run(config, [...tests], root);
    if (failed) throw new Error(`The tests fail without any mistake:\n${output}`);
  }
}

async function work() {
  const copy = await mkdtemp(join(tmpdir(), 'mutation-'));
  try {
    for (const entry of await readdir(root)) {
      if (['.git', 'node_modules', 'dist'].includes(entry) || entry.startsWith('.test-build-')) continue;
      await cp(join(root, entry), join(copy, entry), { recursive: true });
    }
    await symlink(join(root, 'node_modules'), join(copy, 'node_modules'));
    for (let mutant = queue.shift(); mutant; mutant = queue.shift()) {
      const why = await tryOut(mutant, copy);
      process.stdout.write(`${why === undefined ? 'noticed' : 'NOT NOTICED'}: ${mutant.what}\n`);
      if (why !== undefined) unnoticed.push({ ...mutant, why });
    }
  } finally {
    await rm(copy, { recursive: true, force: true });
  }
}

/** @returns why it was not noticed, if it was not */
async function tryOut({ file, find, replace, tests, config }, copy) {
  const path = join(copy, 'lib', file);
  const text = await readFile(path, 'utf8');
  if (text.split(find).length !== 2) return `"${find}" is not in ${file} once`;
  await writeFile(
    path,
    text.replace(find, () => replace),
  );
  try {
    const { failed, output } = await run(config, tests, copy);
    if (!failed) return `${tests.join(', ')} passed`;
    return /^Tests: .* failed/m.test(output) ? undefined : `no test failed: ${output.slice(-300)}`;
  } finally {
    await writeFile(path, text);
  }
}

function run(config, tests, cwd) {
  const jest = [
    '--experimental-vm-modules',
    'node_modules/jest/bin/jest.js',
    '-w',
    '1',
    '--bail',
    '--forceExit',
  ];
  const options = config === undefined ? [] : ['--config', config];
  const args = [...jest, ...options, ...tests];
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      args,
      { cwd, timeout: LONGEST_RUN, maxBuffer: 2 ** 26 },
      (error, stdout, stderr) => {
        const output =
          stdout + stderr + (error?.killed ? '\nTests: it did not end in time, and so failed' : '');
        resolve({ failed: error !== null, output });
      },
    );
  });
}
