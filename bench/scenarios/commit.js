/** Lock, three commands in a transaction, release: by hand in three round trips and unguarded, and as one guarded commit. */
import { randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';
import { startLocks } from '../subjects.js';

const ROUNDS = 9;
const TTL = 10_000;

/** @returns medians over rounds of both, in calls per second, and of their ratio */
export async function commit(url, callers, calls) {
  const redis = new Redis(url);
  redis.defineCommand('release', {
    numberOfKeys: 1,
    lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
  });
  const { app, locks } = await startLocks(url);
  const perSecond = async (call) => {
    const start = performance.now();
    await Promise.all(
      Array.from({ length: callers }, async (_, caller) => {
        for (let i = 0; i < calls; i += 1) await call(`${caller}`);
      }),
    );
    return (callers * calls * 1_000) / (performance.now() - start);
  };
  const queue = (multi, id) => multi.incr(`commit:a:${id}`).incr(`commit:b:${id}`).set(`commit:c:${id}`, id);
  const byHand = () =>
    perSecond(async (id) => {
      const token = randomUUID();
      if ((await redis.set(`byhand:{${id}}`, token, 'PX', TTL, 'NX')) === null) throw new Error('busy');
      try {
        await queue(redis.multi(), id).exec();
      } finally {
        await redis.release(`byhand:{${id}}`, token);
      }
    });
  const ours = () => perSecond((id) => locks.withLock(`commit:${id}`, ({ multi }) => queue(multi, id)));
  await byHand();
  await ours();
  const rounds = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    // Whoever comes first in a round comes second in the next.
    const first = round % 2 ? await ours() : await byHand();
    const second = round % 2 ? await byHand() : await ours();
    const [hand, own] = round % 2 ? [second, first] : [first, second];
    rounds.push({ hand, own, ratio: own / hand });
  }
  await app.close();
  redis.disconnect();
  const median = (name) => rounds.map((round) => round[name]).sort((a, b) => a - b)[Math.floor(ROUNDS / 2)];
  return { callers, byHand: median('hand'), ours: median('own'), oursOverByHand: median('ratio') };
}
