import { GoneException, Injectable } from '@nestjs/common';
import { Redis } from 'ioredis';
import { PaymentsService } from '../payments/payments.service.js';
import { concertKeys } from './concert-keys.js';
import type { Order } from './order.js';

/**
 * How not to do it. While one buyer pays, others are sold the same ticket, and each writes down the number that was
 * left long ago. The transaction does not help: it is applied as a whole, but what it relies on is out of date by then.
 */
@Injectable()
export class UnprotectedTicketsService {
  constructor(
    private readonly redis: Redis,
    private readonly payments: PaymentsService,
  ) {}

  async buy(concertId: string, buyer: string): Promise<Order> {
    const { stock, orders } = concertKeys(concertId);
    const left = Number(await this.redis.get(stock));
    if (left < 1) throw new GoneException('Sold out');

    await this.payments.pay(`${concertId}/${buyer}`);

    const order = { seat: left, buyer };
    await this.redis
      .multi()
      .set(stock, left - 1)
      .rpush(orders, JSON.stringify(order))
      .exec();
    return order;
  }
}
