import { GoneException, Injectable } from '@nestjs/common';
import { LockContext, WithLock } from 'nestjs-redis-lock';
import { PaymentsService } from '../payments/payments.service.js';
import { concertKeys } from './concert-keys.js';
import type { Order } from './order.js';

/**
 * Sells tickets under a lock: one purchase per concert at a time, whichever instance of the shop it comes to, and the
 * others wait in line.
 */
@Injectable()
export class TicketsService {
  constructor(
    private readonly lock: LockContext,
    private readonly payments: PaymentsService,
  ) {}

  @WithLock('concert:<concertId>', { wait: 10_000 })
  async buy(concertId: string, buyer: string): Promise<Order> {
    const { stock, orders } = concertKeys(concertId);
    const left = Number(await this.lock.redis.get(stock));
    if (left < 1) throw new GoneException('Sold out');

    await this.payments.pay(`${concertId}/${buyer}`);

    // Queued here, applied when this method has returned, and only if the lock is still held in that instant.
    const order = { seat: left, buyer };
    this.lock.multi.set(stock, left - 1).rpush(orders, JSON.stringify(order));
    return order;
  }
}
