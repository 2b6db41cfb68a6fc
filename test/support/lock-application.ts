import { randomUUID } from 'node:crypto';
import { Module } from '@nestjs/common';
import type { INestApplicationContext, ModuleMetadata } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';
import { LockContext, LockService, RedisLockModule } from '../../lib/index.js';
import type { RedisLockModuleOptions } from '../../lib/index.js';
import { eventually } from './eventually.js';
import { sharedRedisUrl } from './redis/test-redis.js';

/** A small application with locks, on keys of its own, and a client to look at what is in Redis. */
export interface LockApplication extends AsyncDisposable {
  readonly app: INestApplicationContext;
  readonly locks: LockService;
  readonly context: LockContext;
  readonly redis: Redis;
  /** First part of every lock key, and of every data key that {@link key} names. */
  readonly prefix: string;
  /** A data key that is deleted in the end. */
  key(name: string): string;
  /**
   * Closes it, and fails when it left a lock, a waiter or a key without an end. `await using` does the same, but looks at nothing
   * where the keys are those of another application, which is still open then.
   */
  close(): Promise<void>;
}

export async function startLocks(
  options: RedisLockModuleOptions & { url?: string } = {},
  metadata: ModuleMetadata = {},
): Promise<LockApplication> {
  const { url = sharedRedisUrl(), ...moduleOptions } = options;
  const prefix = moduleOptions.keyPrefix ?? `test-${randomUUID()}`;
  class TestModule {}
  Module({
    ...metadata,
    imports: [
      RedisLockModule.forRoot({ connection: url, ttl: 2_000, ...moduleOptions, keyPrefix: prefix }),
      ...(metadata.imports ?? []),
    ],
  })(TestModule);
  const app = await NestFactory.createApplicationContext(TestModule, { logger: false, abortOnError: false });
  const redis = new Redis(url);
  const close = async () => {
    await app.close();
    try {
      await assertNothingLeft(redis, prefix);
    } finally {
      redis.disconnect();
    }
  };
  return {
    app,
    locks: app.get(LockService),
    context: app.get(LockContext),
    redis,
    prefix,
    key: (name) => `${prefix}:data:${name}`,
    close,
    async [Symbol.asyncDispose]() {
      if (moduleOptions.keyPrefix === undefined) return close();
      await app.close();
      redis.disconnect();
    },
  };
}

/** Closes all of them, also when one of them complains. */
export async function closeAll(...applications: readonly LockApplication[]): Promise<void> {
  const closed = await Promise.allSettled(applications.map((application) => application.app.close()));
  const left = await Promise.allSettled(applications.map((application) => application.close()));
  for (const result of [...closed, ...left]) if (result.status === 'rejected') throw result.reason;
}

/** Fence hashes stay for a while, by design, and with an end; no other key does, and nobody listens any more. */
export async function assertNothingLeft(redis: Redis, prefix: string): Promise<void> {
  const keys = await redis.keys(`*${prefix}*`);
  const left: string[] = [];
  for (const key of keys) {
    if (key.startsWith(`${prefix}:data:`)) continue;
    if (key.startsWith(`${prefix}:fence:`) && (await redis.pttl(key)) !== -1) continue;
    left.push(key);
  }
  if (keys.length > 0) await redis.del(...keys);
  await eventually(async () => ((await redis.pubsub('CHANNELS', `*${prefix}*`)) as string[]).length === 0);
  if (left.length > 0) throw new Error(`Left in Redis: ${left.join(', ')}`);
}
