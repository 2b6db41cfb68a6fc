import { Logger, Module } from '@nestjs/common';
import type { OnApplicationShutdown } from '@nestjs/common';
import { Redis } from 'ioredis';
import { settings } from '../settings.js';

/** The shop's own connection to Redis, for what runs without a lock. */
@Module({
  providers: [{ provide: Redis, useFactory: () => new Redis(settings.redisUrl) }],
  exports: [Redis],
})
export class RedisModule implements OnApplicationShutdown {
  private readonly logger = new Logger(RedisModule.name);

  constructor(private readonly redis: Redis) {
    // ioredis reconnects by itself; without a listener it also prints each failure with its stack.
    redis.on('error', (error) => this.logger.warn(`Redis connection: ${error.message}`));
  }

  onApplicationShutdown(): void {
    this.redis.disconnect();
  }
}
