/** A process that uses locks until it is told to stop, or killed. Forked by crew.ts. */
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';
import { LockService, RedisLockModule } from '../../lib/index.js';
import { Auditor } from './auditor.js';
import { timeNow } from './history.js';
import { Random } from './random.js';
import { Recorder } from './recorder.js';
import { callOnce, KINDS } from './workload.js';
import type { Kinds } from './workload.js';

export interface WorkerOptions {
  readonly url: string;
  readonly prefix: string;
  readonly name: string;
  readonly history: string;
  readonly resources: readonly string[];
  readonly seed: number;
  readonly loops: number;
  /** Leads to Redis without delay. Default: the url. */
  readonly auditUrl?: string;
  /** What it does, and how often. Default: a bit of everything. */
  readonly kinds?: Kinds | readonly Kinds[];
  /** ms. Default: 800. */
  readonly commandTimeout?: number;
}

/** ms between two looks at whether this process gets to do anything. */
const TICK = 20;
/** ms late that such a look is, when the machine is too busy. */
const STOOD_STILL = 150;

export type Order =
  | { readonly order: 'stop' }
  | { readonly order: 'block'; readonly ms: number }
  | { readonly order: 'skew'; readonly ms: number }
  | { readonly order: 'measure' };

/** What a process uses, after a garbage collection where it can ask for one. */
export interface Usage {
  readonly heapMb: number;
  readonly handles: number;
}

const options = JSON.parse(process.argv[2] ?? '{}') as WorkerOptions;
const { url, auditUrl = url, prefix, resources, kinds = KINDS, commandTimeout = 800 } = options;
const roles = [kinds].flat();

class WorkerModule {}
Module({
  imports: [RedisLockModule.forRoot({ connection: url, keyPrefix: prefix, ttl: 1_000, commandTimeout })],
})(WorkerModule);
const app = await NestFactory.createApplicationContext(WorkerModule, { logger: false });
const redis = new Redis(url, { disconnectTimeout: 0 });
redis.on('error', () => undefined); // its commands reject as well
const auditor = new Auditor(auditUrl, prefix);

let stopping = false;
const wallClock = Date.now;

process.on('message', (message: Order) => {
  if (message.order === 'stop') stopping = true;
  if (message.order === 'skew') Date.now = () => wallClock() + message.ms;
  if (message.order === 'block') {
    const end = performance.now() + message.ms;
    while (performance.now() < end);
  }
  if (message.order === 'measure') {
    globalThis.gc?.();
    const usage: Usage = {
      heapMb: process.memoryUsage().heapUsed / 2 ** 20,
      handles: process.getActiveResourcesInfo().length,
    };
    process.send?.(usage);
  }
});
process.on('disconnect', () => process.exit()); // whoever forked it is gone
process.on('unhandledRejection', (error) => {
  console.error('A rejection that nobody heard of:', error);
  process.exit(70);
});

const recorder = new Recorder(options.history, options.name);
let looked = timeNow();
const watch = setInterval(() => {
  const now = timeNow();
  if (now - looked > TICK + STOOD_STILL) recorder.stoodStill(looked, now);
  looked = now;
}, TICK);
const locks = app.get(LockService);
// Who waits for the first time is in line only when this process listens.
await locks.withLock(`warm-up:${options.name}`, { wait: 5_000 }, () => undefined);
process.send?.('ready');
await Promise.all(
  Array.from({ length: options.loops }, async (_, loop) => {
    const random = new Random(options.seed + loop * 7_919);
    const setting = { locks, redis, auditor, prefix, recorder, random };
    while (!stopping) await callOnce(setting, resources, roles[loop % roles.length] as Kinds);
  }),
);
await app.close();
clearInterval(watch);
auditor.close();
redis.disconnect();
process.send?.('done', () => process.disconnect());
