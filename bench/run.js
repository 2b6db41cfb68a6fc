/** `npm run bench [-- --seconds N]`: measures the scenarios one after the other, each subject in turn. */
import { provideRedis } from '../sample-app/dist/test/support/redis/provide-redis.js';
import { fourProcesses, oneProcess } from './scenarios/hot-key.js';
import { commit } from './scenarios/commit.js';
import { decorator } from './scenarios/decorator.js';
import { leases, waiters } from './scenarios/many.js';
import { subjects } from './subjects.js';

const flag = process.argv.indexOf('--seconds');
const seconds = flag === -1 ? 3 : Number(process.argv[flag + 1]);
const ROUNDS = 3;

const redis = await provideRedis();
try {
  // First, for memory is measured against what this process has used before.
  process.stderr.write('10,000 waiters\n');
  console.log('10,000 waiters in a process ', JSON.stringify(await waiters(redis.url)));
  for (const { title, measure } of [oneProcess, fourProcesses]) {
    const rounds = { byHand: [], ours: [] };
    for (let round = 0; round < ROUNDS; round += 1) {
      for (const name of Object.keys(rounds)) {
        process.stderr.write(`${title}: ${subjects[name].name}, round ${round + 1} of ${ROUNDS}\n`);
        rounds[name].push(await measure(redis.url, name, seconds));
      }
    }
    console.log(`\n${title}`);
    console.log('                                sections/s   fairness   p50 wait   worst wait');
    for (const [name, results] of Object.entries(rounds)) {
      const { perSecond, fairness, p50, worst } = medians(results);
      console.log(
        `  ${subjects[name].name.padEnd(28)}${perSecond.toFixed(0).padStart(12)}${fairness.toFixed(3).padStart(11)}` +
          `${`${p50.toFixed(1)} ms`.padStart(11)}${`${worst.toFixed(0)} ms`.padStart(13)}`,
      );
    }
    const ratio = medians(rounds.ours).perSecond / medians(rounds.byHand).perSecond;
    console.log(`  ratio of sections/s: ${ratio.toFixed(2)}\n`);
  }
  process.stderr.write('lock, three commands, release\n');
  for (const [callers, calls] of [
    [1, 2_000],
    [64, 150],
  ]) {
    console.log('lock + 3 commands + release ', JSON.stringify(await commit(redis.url, callers, calls)));
  }
  process.stderr.write('decorator and service\n');
  for (const [callers, calls] of [
    [1, 1_000],
    [64, 60],
  ]) {
    console.log('decorator over service      ', JSON.stringify(await decorator(redis.url, callers, calls)));
  }
  process.stderr.write('10,000 leases\n');
  console.log('10,000 leases in a process  ', JSON.stringify(await leases(redis.url)));
} finally {
  await redis.stop();
}

function medians(results) {
  const median = (key) =>
    results.map((result) => result[key]).sort((a, b) => a - b)[Math.floor(results.length / 2)];
  return Object.fromEntries(Object.keys(results[0]).map((key) => [key, median(key)]));
}
