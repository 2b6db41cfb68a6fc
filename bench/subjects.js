/**
 * What is compared, behind one shape: `start(url)` answers with `section(resource, work)`, which runs the work under
 * a lock and waits for that as long as it takes, and `close()`. All have a ttl of 10 s; who polls does so every 5 ms.
 */
import { randomUUID } from 'node:crypto';
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redlock as SesamecareRedlock } from '@sesamecare-oss/redlock';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import Redlock from 'redlock';
import { createLock, IoredisAdapter } from 'redlock-universal';
import { lock as lockMutex } from 'simple-redis-mutex';
import { LockService, RedisLockModule } from '../dist/index.js';

export const TTL = 10_000;
const POLL = 5;

/** SET NX in a loop, and a script that deletes the key if it still has our token: what people write themselves. */
const byHand = {
  name: 'by hand, on ioredis',
  async start(url) {
    const redis = connectByHand(url);
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

/** A client with the release script of hand-written locks. */
export function connectByHand(url) {
  const redis = new Redis(url);
  redis.defineCommand('release', {
    numberOfKeys: 1,
    lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
  });
  return redis;
}

/** This package. */
const ours = {
  name: 'nestjs-redis-lock',
  async start(url) {
    const { app, locks } = await startLocks(url);
    return {
      async section(resource, work) {
        const lock = await locks.acquire(resource, { wait: Infinity });
        try {
          return await work();
        } finally {
          await lock.release();
        }
      },
      close: () => app.close(),
    };
  },
};

function redlock(name, Class) {
  return {
    name,
    async start(url) {
      const redis = new Redis(url);
      const options = { retryCount: -1, retryDelay: POLL, retryJitter: 0 };
      const locks = new Class([redis], options);
      locks.on('error', () => undefined); // each attempt that is refused
      return {
        async section(resource, work) {
          const lock = await locks.acquire([`redlock:{${resource}}`], TTL);
          try {
            return await work();
          } finally {
            await lock.release();
          }
        },
        close: async () => redis.disconnect(),
      };
    },
  };
}

const universal = {
  name: 'redlock-universal',
  async start(url) {
    const redis = new Redis(url);
    const adapter = new IoredisAdapter(redis);
    return {
      async section(resource, work) {
        const lock = createLock({
          adapter,
          key: `universal:{${resource}}`,
          ttl: TTL,
          retryAttempts: 1_000_000,
          retryDelay: POLL,
        });
        const handle = await lock.acquire();
        try {
          return await work();
        } finally {
          await lock.release(handle);
        }
      },
      close: async () => redis.disconnect(),
    };
  },
};

const mutex = {
  name: 'simple-redis-mutex',
  async start(url) {
    const redis = await createClient({ url }).connect();
    return {
      async section(resource, work) {
        const release = await lockMutex(redis, `mutex:{${resource}}`, {
          timeout: TTL,
          pollingInterval: POLL,
        });
        try {
          return await work();
        } finally {
          await release();
        }
      },
      close: async () => redis.destroy(),
    };
  },
};

export const subjects = {
  byHand,
  ours,
  redlock: redlock('redlock 5 beta', Redlock),
  sesamecare: redlock('@sesamecare-oss/redlock', SesamecareRedlock),
  universal,
  mutex,
};

/** An application that has nothing but locks. */
export async function startLocks(url, options = {}, providers = []) {
  class BenchModule {}
  Module({ imports: [RedisLockModule.forRoot({ connection: url, ttl: TTL, ...options })], providers })(
    BenchModule,
  );
  const app = await NestFactory.createApplicationContext(BenchModule, { logger: ['error', 'warn'] });
  return { app, locks: app.get(LockService) };
}
