import { setTimeout as pause } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';

const FASTEST = 2;
const SLOWEST = 8;

/** Stands for a payment provider: it only takes its time. */
@Injectable()
export class PaymentsService {
  /**
   * A real one is given the purchase as its idempotency key: work under a lock may run a second time, and must not
   * be paid for twice.
   */
  async pay(_purchase: string): Promise<void> {
    await pause(FASTEST + Math.random() * (SLOWEST - FASTEST));
  }
}
