/**
 * `npm run soak [-- --minutes N]`: workers use locks all the time, and nothing may grow. Ends with 1 when something does.
 */
import { parseArgs } from 'node:util';
import { Redis } from 'ioredis';
import { provideRedis } from '../support/redis/provide-redis.js';
import { Member } from './crew.js';
import { dataKeys } from './setting.js';

const MEMBERS = 3;
const LOOPS = 8;
const RESOURCES = 40;
const PREFIX = 'soak';
/** ms between two looks. */
const PERIOD = 5_000;

/** What is looked at, and by how much it may differ: memory is never quite the same. */
const MEASURES = {
  heapMb: { label: 'heap of a worker, MB', relative: 0.1, absolute: 3 },
  handles: { label: 'handles of a worker', relative: 0, absolute: 6 },
  connections: { label: 'connections', relative: 0, absolute: 2 },
  keys: { label: 'keys in Redis', relative: 0.1, absolute: 20 },
  redisMb: { label: 'memory of Redis, MB', relative: 0.1, absolute: 1 },
} as const;

type Sample = Record<keyof typeof MEASURES, number>;

const { values } = parseArgs({ options: { minutes: { type: 'string', default: '2' } } });
const minutes = Number(values.minutes);
if (!(minutes > 0)) throw new Error('--minutes wants a number');

const server = await provideRedis({ private: true });
const redis = new Redis(server.url);
const resources = Array.from({ length: RESOURCES }, (_, i) => `r${i}`);
const samples: Sample[] = [];
let crew: Member[] = [];
try {
  const start = (name: string, seed: number) =>
    Member.start({
      url: server.url,
      prefix: PREFIX,
      name,
      history: '/dev/null',
      resources,
      seed,
      loops: LOOPS,
    });
  crew = await Promise.all(Array.from({ length: MEMBERS }, (_, i) => start(`m${i}`, i)));
  const until = performance.now() + minutes * 60_000;
  while (performance.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
    const sample = await measure();
    samples.push(sample);
    const words = Object.entries(MEASURES).map(
      ([name, { label }]) => `${label}: ${sample[name as keyof Sample].toFixed(1)}`,
    );
    console.log(words.join(', '));
  }
} finally {
  await Promise.all(crew.map((member) => member.end()));
  redis.disconnect();
  await server.stop();
}

// The first quarter is for warming up.
const quarter = Math.max(1, Math.floor(samples.length / 4));
const growing = (Object.keys(MEASURES) as (keyof Sample)[]).filter((name) => {
  const { label, relative, absolute } = MEASURES[name];
  const before = median(samples.slice(quarter, 2 * quarter).map((sample) => sample[name]));
  const after = median(samples.slice(-quarter).map((sample) => sample[name]));
  const isFlat = after <= before * (1 + relative) + absolute;
  console.log(`${label}: from ${before.toFixed(1)} to ${after.toFixed(1)}, ${isFlat ? 'flat' : 'GROWING'}`);
  return !isFlat;
});
process.exitCode = growing.length > 0 || samples.length < 4 ? 1 : 0;

async function measure(): Promise<Sample> {
  // The work writes one entry for each commit, which is not what is looked at.
  const data = resources.map((resource) => dataKeys(PREFIX, resource).entries);
  await redis.del(...data);
  const usages = await Promise.all(crew.map((member) => member.measure()));
  const worst = (name: 'heapMb' | 'handles') => Math.max(...usages.map((usage) => usage[name]));
  const clients = String(await redis.client('LIST'));
  return {
    heapMb: worst('heapMb'),
    handles: worst('handles'),
    connections: clients.trim().split('\n').length,
    keys: await redis.dbsize(),
    redisMb: Number(/used_memory:(\d+)/.exec(await redis.info('memory'))?.[1] ?? 0) / 2 ** 20,
  };
}

function median(values: readonly number[]): number {
  return [...values].sort((one, other) => one - other)[Math.floor(values.length / 2)] ?? 0;
}
