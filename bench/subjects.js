/**
 * What is compared, behind one shape: `start(url)` answers with `section(resource, work)`, which runs the work under
 * a lock and waits for that as long as it takes, and `close()`.
 */
import { randomUUID } from 'node:crypto';
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';
import { LockService, RedisLockModule } from 'nestjs-redis-lock';

const TTL = 10_000;
const POLL = 5;

/** SET NX in a loop, and a script that deletes the key if it still has our token: what people write themselves. */
const byHand = {
  name: 'SET NX, polling every 5 ms',
  async start(url) {
    const redis = new Redis(url);
    redis.defineCommand('release', {
      numberOfKeys: 1,
      lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
    });
    return {
      async section(resource, work) {
        const key = `byhand:{${resource}}`;
        const token = randomUUID();
        while ((await redis.set(key, token, 'PX', TTL, 'NX')) === null) {
          await new Promise((resolve) => setTimeout(resolve, POLL));
        }
        try {
          return await work();
        } finally {
          await redis.release(key, token);
        }
      },
      close: async () => redis.disconnect(),
    };
  },
};

/** This package. */
const ours = {
  name: 'nestjs-redis-lock',
  async start(url) {
    const { app, locks } = await startLocks(url);
    return {
      section: (resource, work) => locks.withLock(resource, { wait: Infinity }, work),
      close: () => app.close(),
    };
  },
};

export const subjects = { byHand, ours };

/** An application that has nothing but locks. */
export async function startLocks(url, options = {}, providers = []) {
  class BenchModule {}
  Module({ imports: [RedisLockModule.forRoot({ connection: url, ttl: TTL, ...options })], providers })(
    BenchModule,
  );
  const app = await NestFactory.createApplicationContext(BenchModule, { logger: ['error', 'warn'] });
  return { app, locks: app.get(LockService) };
}
