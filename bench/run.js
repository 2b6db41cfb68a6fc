/**
 * `npm run bench [-- --seconds N] [--rounds N] [--json FILE] [--chart FILE] [--only WORDS]`: measures the scenarios one after
 * the other, the subjects of each in turn, several times; shows medians, and how far the rounds lie apart.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { provideRedis } from '../test/chaos/dist/test/support/redis/provide-redis.js';
import { startDelayProxy } from '../test/chaos/dist/test/support/delay-proxy.js';
import { drawChart } from './chart.js';
import { scenarios } from './scenarios/index.js';
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
const MEASURING_PROCESS = fileURLToPath(new URL('measuring-process.js', import.meta.url));
const lines = [];
const say = (words) => process.stderr.write(`${words}\n`);

const redis = await provideRedis({ private: true });
const slow = await startDelayProxy(redis.url, 1);
try {
  for (const scenario of scenarios.filter(({ title }) => title.includes(values.only))) {
    if (scenario.once) await measureOnce(scenario);
    else await compare(scenario);
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

/** @returns what measures that subject, in a process of its own until it is closed */
async function measuringProcess({ title, delayed }, name) {
  const task = JSON.stringify({ title, name, url: delayed ? slow.url : redis.url });
  const child = fork(MEASURING_PROCESS, [task]);
  await answerOf(child);
  return {
    measure(seconds) {
      child.send(seconds);
      return answerOf(child);
    },
    async close() {
      child.disconnect();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

async function answerOf(child) {
  const gone = new AbortController();
  const answer = once(child, 'message', { signal: gone.signal });
  const exit = once(child, 'exit', { signal: gone.signal }).then(([code]) => {
    throw new Error(`A process that measures has ended with ${code}`);
  });
  try {
    return (await Promise.race([answer, exit]))[0];
  } finally {
    gone.abort();
    await Promise.allSettled([answer, exit]);
  }
}

async function measureOnce(scenario) {
  say(scenario.title);
  const subject = await measuringProcess(scenario, 'ours');
  const result = await subject.measure(seconds);
  await subject.close();
  keep({ scenario: scenario.title, subject: NAMES.ours, ...result });
  console.log(`${scenario.title}: ${JSON.stringify(result)}`);
}

async function compare(scenario) {
  const { title, who } = scenario;
  const measured = Object.fromEntries(
    await Promise.all(who.map(async (name) => [name, await measuringProcess(scenario, name)])),
  );
  const results = Object.fromEntries(who.map((name) => [name, []]));
  for (let round = 0; round < rounds; round += 1) {
    say(`${title}: round ${round + 1} of ${rounds}`);
    // Whoever comes first in a round comes last in the next.
    for (const name of round % 2 ? [...who].reverse() : who) {
      results[name].push(await measured[name].measure(seconds));
    }
  }
  for (const name of who) await measured[name].close();
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
