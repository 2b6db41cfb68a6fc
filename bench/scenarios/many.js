/** 10,000 of something in one process: leases that have to be renewed, waiters that have to be remembered. */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Redis } from 'ioredis';
import { startLocks } from '../subjects.js';

const MANY = 10_000;

/** What 100 that wait for one lock have Redis do: scripts per second, the holder's renewals included. */
async function idleWaiters(url) {
  const { app, locks } = await startLocks(url);
  const redis = new Redis(url);
  const commands = async () =>
    Number(/cmdstat_evalsha:calls=(\d+)/.exec(await redis.info('commandstats'))?.[1] ?? 0);
  const held = await locks.acquire('idle');
  const abort = new AbortController();
  const waiting = Array.from({ length: 100 }, () =>
    locks.acquire('idle', { wait: Infinity, signal: abort.signal }).catch(() => undefined),
  );
  while ((await redis.zcard('lock:queue:{idle}')) < 100);
  const seconds = 10;
  const before = await commands();
  await new Promise((resolve) => setTimeout(resolve, seconds * 1_000));
  const perSecond = ((await commands()) - before) / seconds;
  abort.abort();
  await Promise.all(waiting);
  await held.release();
  await app.close();
  redis.disconnect();
  return { waiters: 100, commandsPerSecond: perSecond };
}

/** How many round trips their renewal takes in each period of a third of the ttl, and how long the loop stands still. */
async function leases(url) {
  const ttl = 6_000;
  const { app, locks } = await startLocks(url, { ttl });
  const redis = new Redis(url);
  const scripts = async () =>
    Number(/cmdstat_evalsha:calls=(\d+)/.exec(await redis.info('commandstats'))?.[1] ?? 0);
  await (await locks.acquire('warm-up')).release();
  await collectGarbage();
  const before = process.memoryUsage().heapUsed;
  const taken = [];
  for (let i = 0; i < MANY; i += 500) {
    const some = Array.from({ length: 500 }, (_, j) => locks.acquire(`lease:${i + j}`));
    taken.push(...(await Promise.all(some)));
  }
  await collectGarbage();
  const heapMb = (process.memoryUsage().heapUsed - before) / 2 ** 20;
  const loop = monitorEventLoopDelay({ resolution: 1 });
  const periods = [];
  loop.enable();
  for (let period = 0; period < 4; period += 1) {
    const first = await scripts();
    await new Promise((resolve) => setTimeout(resolve, ttl / 3));
    periods.push((await scripts()) - first);
  }
  loop.disable();
  const held = Number((await redis.eval("return #redis.call('keys', 'lock:{lease:*')", 0)) ?? 0);
  const alive = taken.every((lock) => lock.held);
  await app.close();
  redis.disconnect();
  return {
    leases: held,
    alive,
    heapMb,
    roundTripsPerPeriod: Math.max(...periods),
    loopDelayMax: loop.max / 1e6,
  };
}

/** More than once: what ended last is freed only after its callbacks ran. */
async function collectGarbage() {
  for (let i = 0; i < 5; i += 1) {
    globalThis.gc();
    await new Promise(setImmediate);
  }
}

/** What they cost in memory, and in which order and how fast they are served. */
async function waiters(url) {
  const { app, locks } = await startLocks(url);
  const redis = new Redis(url);
  const held = await locks.acquire('crowd');
  await (await locks.acquire('warm-up', { wait: Infinity })).release();
  await collectGarbage();
  const before = process.memoryUsage().heapUsed;
  const order = [];
  const waiting = [];
  for (let i = 0; i < MANY; i += 500) {
    for (let j = 0; j < 500; j += 1) {
      const place = i + j;
      waiting.push(
        locks.acquire('crowd', { wait: Infinity }).then((lock) => {
          order.push(place);
          return lock.release();
        }),
      );
    }
    while ((await redis.zcard('lock:queue:{crowd}')) < i + 500);
  }
  await collectGarbage();
  const heapMb = (process.memoryUsage().heapUsed - before) / 2 ** 20;
  const start = performance.now();
  await held.release();
  await Promise.all(waiting);
  const seconds = (performance.now() - start) / 1_000;
  await app.close();
  redis.disconnect();
  return {
    waiters: MANY,
    heapMb,
    inOrder: order.every((place, i) => place === i),
    perSecond: MANY / seconds,
  };
}

const alone = (title, measure) => ({ title, who: ['ours'], once: true, delayed: false, measure });

export const many = [
  alone('10,000 waiters in a process', waiters),
  alone('10,000 leases in a process', leases),
  alone('100 idle waiters', idleWaiters),
];
