/**
 * `npm run bench [-- --seconds N] [--rounds N] [--json FILE] [--chart FILE] [--only WORDS]`: measures the scenarios one after
 * the other, the subjects of each in turn, several times; shows medians, and how far the rounds lie apart.
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { provideRedis } from '../test/chaos/dist/test/support/redis/provide-redis.js';
import { startDelayProxy } from '../test/chaos/dist/test/support/delay-proxy.js';
import { drawChart } from './chart.js';
import { commits } from './scenarios/commit.js';
import { decorators } from './scenarios/decorator.js';
import { idleWaiters, leases, waiters } from './scenarios/many.js';
import { sections } from './scenarios/sections.js';
import { subjects } from './subjects.js';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '1.5' },
    rounds: { type: 'string', default: '5' },
    json: { type: 'string' },
    chart: { type: 'string' },
    only: { type: 'string', default: '' },
  },
});
const [seconds, rounds] = [Number(values.seconds), Number(values.rounds)];
const NAMES = {
  ...Object.fromEntries(Object.entries(subjects).map(([key, { name }]) => [key, name])),
  service: 'locks.withLock',
};
const lines = [];
const say = (words) => process.stderr.write(`${words}\n`);
const isWanted = (title) => title.includes(values.only);

const redis = await provideRedis({ private: true });
const slow = await startDelayProxy(redis.url, 1);
try {
  // First, for memory is measured against what this process has used before.
  for (const [title, measure] of [
    ['10,000 waiters in a process', waiters],
    ['10,000 leases in a process', leases],
    ['100 idle waiters', idleWaiters],
  ]) {
    if (!isWanted(title)) continue;
    say(title);
    const result = await measure(redis.url);
    keep({ scenario: title, subject: NAMES.ours, ...result });
    console.log(`${title}: ${JSON.stringify(result)}`);
  }
  for (const scenario of [...sections, ...commits, ...decorators]) {
    if (isWanted(scenario.title)) await compare(scenario);
  }
} finally {
  await slow.close();
  await redis.stop();
}

/** What there is so far: a run that is ended early has not been for nothing. */
function keep(line) {
  lines.push(line);
  if (values.json) writeFileSync(values.json, lines.map((each) => `${JSON.stringify(each)}\n`).join(''));
  if (values.chart) writeFileSync(values.chart, drawChart(lines));
}

async function compare({ title, who, delayed, measure }) {
  const results = Object.fromEntries(who.map((name) => [name, []]));
  for (let round = 0; round < rounds; round += 1) {
    say(`${title}: round ${round + 1} of ${rounds}`);
    // Whoever comes first in a round comes last in the next.
    for (const name of round % 2 ? [...who].reverse() : who) {
      results[name].push(await measure(delayed ? slow.url : redis.url, name, seconds));
    }
  }
  console.log(`\n${title}`);
  console.log(`  ${''.padEnd(26)}  sections/s  of the first    spread   fairness   p50 ms   p99 ms   max ms`);
  for (const name of who) {
    const middle = medians(results[name]);
    // Round by round, for the machine is not equally fast in all of them.
    const ratios = results[name].map((each, i) => each.opsPerSecond / results[who[0]][i].opsPerSecond);
    const ratio = median(ratios);
    const spread = `${Math.min(...ratios).toFixed(2)}-${Math.max(...ratios).toFixed(2)}`;
    const cells = [
      middle.opsPerSecond.toFixed(0).padStart(10),
      ratio.toFixed(2).padStart(12),
      spread.padStart(9),
      middle.fairness.toFixed(3).padStart(10),
      ...['p50', 'p99', 'max'].map((key) => middle[key].toFixed(2).padStart(8)),
    ];
    console.log(`  ${NAMES[name].padEnd(26)}  ${cells.join(' ')}`);
    keep({ scenario: title, subject: NAMES[name], ...middle, ratio, spread });
  }
}

function medians(results) {
  return Object.fromEntries(
    Object.keys(results[0]).map((key) => [key, median(results.map((result) => result[key]))]),
  );
}

function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];
}
