import { Module } from '@nestjs/common';
import { RedisLockModule } from 'nestjs-redis-lock';
import { settings } from './settings.js';
import { TicketsModule } from './tickets/tickets.module.js';

@Module({
  imports: [
    // Every instance of the shop that names the same Redis shares the same locks.
    RedisLockModule.forRoot({ connection: settings.redisUrl }),
    TicketsModule,
  ],
})
export class AppModule {}
