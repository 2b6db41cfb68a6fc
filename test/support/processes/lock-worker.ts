/** A process with locks of its own that does what its parent says. Forked by fork-worker.ts. */
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import type { INestApplicationContext } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';
import { LockError, LockService, RedisLockModule } from '../../../lib/index.js';
import type { AcquireOptions, Lock, RedisLockModuleOptions, WithLockOptions } from '../../../lib/index.js';

let app: INestApplicationContext;
let locks: LockService;
let redis: Redis;
let closed = false;
const held = new Map<string, Lock>();
const ended: string[] = [];

/** What a parent can ask for; each answer goes back over IPC. */
export const tasks = {
  async start(url: string, options: RedisLockModuleOptions): Promise<void> {
    class WorkerModule {}
    Module({ imports: [RedisLockModule.forRoot({ connection: url, ...options })] })(WorkerModule);
    app = await NestFactory.createApplicationContext(WorkerModule, { logger: false });
    app.enableShutdownHooks();
    locks = app.get(LockService);
    redis = new Redis(url, { disconnectTimeout: 0 });
    redis.on('error', () => undefined); // its commands reject as well
  },

  async acquire(
    resource: string,
    options: AcquireOptions = {},
  ): Promise<{ token: string; fencingToken: number }> {
    const lock = await locks.acquire(resource, options);
    held.set(resource, lock);
    return { token: lock.token, fencingToken: lock.fencingToken };
  },

  async release(resource: string): Promise<void> {
    await held.get(resource)?.release();
  },

  async extend(resource: string, ttl: number): Promise<void> {
    await held.get(resource)?.extend(ttl);
  },

  async isHeld(resource: string): Promise<{ held: boolean; aborted: boolean; remaining: number }> {
    const lock = held.get(resource);
    return {
      held: lock?.held ?? false,
      aborted: lock?.signal.aborted ?? false,
      remaining: lock?.remaining ?? 0,
    };
  },

  /** Waits in the background; when its turn comes, writes its name down and lets the next one in. */
  async queueUp(resource: string, name: string, list: string, options: AcquireOptions = {}): Promise<void> {
    void locks
      .withLock(resource, { wait: Infinity, ...options }, ({ multi }) => multi.rpush(list, name))
      .then(
        () => ended.push('done'),
        (error: unknown) => ended.push(error instanceof LockError ? error.code : String(error)),
      );
  },

  async ended(): Promise<string[]> {
    return ended;
  },

  /** Adds one under the lock, reading before and writing after, as often as it is said to. */
  async count(resource: string, key: string, times: number, options: WithLockOptions = {}): Promise<number> {
    for (let i = 0; i < times; i += 1) {
      await locks.withLock(resource, { wait: Infinity, ...options }, async ({ multi }) => {
        const read = Number((await redis.get(key)) ?? 0);
        multi.set(key, read + 1);
      });
    }
    return process.pid;
  },

  /** Work that blocks the event loop in the middle of it, once it has left word at `<key>:started`. */
  async blockUnderLock(resource: string, key: string, ms: number, options: WithLockOptions): Promise<string> {
    return locks.withLock(resource, options, async ({ multi, lock }) => {
      multi.set(key, lock.token);
      await redis.set(`${key}:started`, lock.token);
      const end = performance.now() + ms;
      while (performance.now() < end);
      return lock.token;
    });
  },

  /** Work that takes its time, and then has something to commit; ends when it is told to, or after a while. */
  /** Leaves word at `<key>:started`. */
  async workSlowly(resource: string, key: string, ms: number): Promise<void> {
    await locks.withLock(resource, async ({ multi }) => {
      await redis.set(`${key}:started`, 1);
      await new Promise((resolve) => setTimeout(resolve, ms));
      await locks.withLock(`${resource}:nested`, (nested) => nested.multi.incr(key));
      multi.incr(key);
    });
  },

  /** From here on nothing but an open handle of ours could keep the process alive. */
  async close(): Promise<void> {
    closed = true;
    await app.close();
    redis.disconnect();
  },
};

export type Tasks = typeof tasks;

process.on('message', (message: { id: number; task: keyof Tasks; args: unknown[] }) => {
  const { id, task, args } = message;
  const run = tasks[task] as (...args: unknown[]) => Promise<unknown>;
  run(...args).then(
    (result) => process.send?.({ id, result }),
    (error: { message: string; code?: string; reason?: string }) =>
      process.send?.({ id, error: { message: error.message, code: error.code, reason: error.reason } }),
  );
});
process.on('disconnect', () => {
  if (!closed) process.exit();
});
process.send?.({ id: 0, result: 'ready' });
