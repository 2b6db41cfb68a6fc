/**
 * `npm run test:chaos [-- --minutes N] [--seed S] [--only SCENE] [--mutation NAME]`: round after round of workers and faults, each
 * checked as soon as it is over. Ends with 1 when promises were broken. A round that failed is repeated with its seed.
 */
import { parseArgs } from 'node:util';
import { startDelayProxy } from '../support/delay-proxy.js';
import type { Violation } from './checker.js';
import { ChaosRedis } from './chaos-redis.js';
import { timeNow } from './history.js';
import { mutate, MUTATIONS } from './mutations.js';
import { playRound } from './round.js';
import { sceneOf } from './scenes.js';

/** ms. Those about one thing are shorter, so that all of them have their turn. */
const ROUND = 15_000;
const ROUND_ABOUT_ONE_THING = 12_000;
/** Violations of one rule in one round; there may be thousands. */
const SHOWN = 3;

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '5' },
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    round: { type: 'string', default: '0' },
    only: { type: 'string' },
    mutation: { type: 'string' },
  },
});
const minutes = Number(values.minutes);
const seed = Number(values.seed);
if (!(minutes > 0) || !Number.isInteger(seed)) throw new Error('--minutes and --seed want numbers');
sceneOf(0, values.only); // throws when there is none of that name

const mutated = values.mutation === undefined ? undefined : await mutate(values.mutation);
const until = timeNow() + minutes * 60_000;
const redis = await ChaosRedis.start();
const [endpoint, network] = [await startDelayProxy(redis.url), await startDelayProxy(redis.url)];
const sum = { calls: 0, commits: 0, longestWait: 0 };
const faults = new Map<string, number>();
const violations: Violation[] = [];
console.log(
  `seed ${seed}${mutated ? `, ${values.mutation}: ${MUTATIONS[values.mutation ?? '']?.what}` : ''}`,
);
try {
  for (let number = Number(values.round); timeNow() < until; number += 1) {
    const ms = Math.min(number % 2 === 0 ? ROUND : ROUND_ABOUT_ONE_THING, until - timeNow());
    const { name, scene } = sceneOf(number, values.only);
    const options = { seed, number, ms, scene, build: mutated?.folder };
    const result = await playRound({ redis, endpoint, network }, options);
    sum.calls += result.calls;
    sum.commits += result.commits;
    sum.longestWait = Math.max(sum.longestWait, result.longestWait);
    for (const { kind } of result.faults) faults.set(kind, (faults.get(kind) ?? 0) + 1);
    violations.push(...result.violations);
    console.log(
      `round ${number}, ${name}: ${result.calls} calls, ${result.commits} commits, ${result.faults.length} faults, ` +
        `longest wait ${result.longestWait.toFixed(0)} ms, ${result.violations.length} violations`,
    );
    for (const [rule, broken] of byRule(result.violations)) {
      console.log(`  ${rule}: ${broken.length} times`);
      for (const { resource, message } of broken.slice(0, SHOWN)) {
        console.log(`    ${resource === undefined ? '' : `${resource}: `}${message}`);
      }
    }
    if (result.history) console.log(`  the history is in ${result.history}`);
    if (mutated && violations.length > 0) break; // it was found
  }
} finally {
  await endpoint.close();
  await network.close();
  await redis.stop();
  await mutated?.remove();
}
console.log(`\n${sum.calls} calls, ${sum.commits} commits, longest wait ${sum.longestWait.toFixed(0)} ms`);
for (const [kind, times] of [...faults].sort()) console.log(`  ${kind}: ${times}`);
console.log(`${violations.length} violations`);
process.exitCode = violations.length > 0 ? 1 : 0;

function byRule(violations: readonly Violation[]): Map<string, Violation[]> {
  const rules = new Map<string, Violation[]>();
  for (const violation of violations) {
    const known = rules.get(violation.rule);
    if (known) known.push(violation);
    else rules.set(violation.rule, [violation]);
  }
  return rules;
}
