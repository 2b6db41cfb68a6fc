import { Controller, Param, Post } from '@nestjs/common';
import type { Order } from './order.js';
import { TicketsService } from './tickets.service.js';
import { UnprotectedTicketsService } from './unprotected-tickets.service.js';

@Controller('concerts/:concertId')
export class TicketsController {
  constructor(
    private readonly tickets: TicketsService,
    private readonly unprotected: UnprotectedTicketsService,
  ) {}

  /** 201 the order; 410 sold out; 423 with Retry-After when the line is too long, which RedisLockModule answers. */
  @Post('orders/:buyer')
  buy(@Param('concertId') concertId: string, @Param('buyer') buyer: string): Promise<Order> {
    return this.tickets.buy(concertId, buyer);
  }

  @Post('unprotected-orders/:buyer')
  buyUnprotected(@Param('concertId') concertId: string, @Param('buyer') buyer: string): Promise<Order> {
    return this.unprotected.buy(concertId, buyer);
  }
}
