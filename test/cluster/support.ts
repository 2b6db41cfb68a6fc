import { randomUUID } from 'node:crypto';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import calculateSlot from 'cluster-key-slot';
import { LockService, RedisLockModule } from '../../lib/index.js';
import type { RedisLockModuleOptions } from '../../lib/index.js';

/** Applications on one Redis, all with the same keys, which are closed together. */
export class Applications {
  readonly prefix = `cluster-${randomUUID()}`;
  readonly #endings: (() => Promise<void>)[] = [];

  async start(options: RedisLockModuleOptions): Promise<LockService> {
    class TestModule {}
    Module({ imports: [RedisLockModule.forRoot({ keyPrefix: this.prefix, ttl: 4_000, ...options })] })(
      TestModule,
    );
    const app = await NestFactory.createApplicationContext(TestModule, {
      logger: false,
      abortOnError: false,
    });
    this.#endings.push(() => app.close());
    return app.get(LockService);
  }

  async close(): Promise<void> {
    await Promise.all(this.#endings.splice(0).map((end) => end()));
  }
}

export function slotOf(resource: string): number {
  return calculateSlot(`{${resource}}`);
}
