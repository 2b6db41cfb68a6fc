import { Module } from '@nestjs/common';
import type { Provider } from '@nestjs/common';
import { PaymentsService } from '../payments/payments.service.js';
import { RedisModule } from '../redis/redis.module.js';
import { settings } from '../settings.js';
import { TicketsController } from './tickets.controller.js';
import { TicketsService } from './tickets.service.js';
import { UnprotectedTicketsService } from './unprotected-tickets.service.js';

/** `npm run demo -- --without-lock`: the same route, served without its lock. A shop of yours needs no such thing. */
const tickets: Provider = settings.withoutLock
  ? { provide: TicketsService, useExisting: UnprotectedTicketsService }
  : TicketsService;

@Module({
  imports: [RedisModule],
  controllers: [TicketsController],
  providers: [PaymentsService, UnprotectedTicketsService, tickets],
})
export class TicketsModule {}
