import { Injectable } from '@nestjs/common';
import { EventEmitter2, EventEmitterModule, OnEvent } from '@nestjs/event-emitter';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { LockContext, WithLock } from '../../../lib/index.js';
import { startLocks } from '../../support/lock-application.js';
import type { LockApplication } from '../../support/lock-application.js';

const prefix = `test-events-${process.pid}`;
const ran = `${prefix}:data:ran`;

interface OrderPlaced {
  id: string;
}

@Injectable()
class Mailer {
  constructor(private readonly context: LockContext) {}

  @WithLock('order:<order.id>')
  @OnEvent('placed.above', { suppressErrors: false })
  async above(order: OrderPlaced): Promise<string> {
    return this.note(order);
  }

  @OnEvent('placed.below', { suppressErrors: false })
  @WithLock('order:<order.id>')
  async below(order: OrderPlaced): Promise<string> {
    return this.note(order);
  }

  @OnEvent('suppressed')
  @WithLock('order:<order.id>')
  async suppressed(order: OrderPlaced): Promise<string> {
    return this.note(order);
  }

  @WithLock('order:<order.id>')
  @OnEvent('paid')
  @OnEvent('refunded')
  async twoEvents(order: OrderPlaced): Promise<string> {
    return this.note(order);
  }

  private async note({ id }: OrderPlaced): Promise<string> {
    const held = await this.context.redis.exists(`${prefix}:{order:${id}}`);
    this.context.multi.rpush(ran, `${id} ${held ? 'under' : 'without'} ${this.context.lock.resources}`);
    return id;
  }
}

describe('a locked listener', () => {
  let one: LockApplication;
  let events: EventEmitter2;

  beforeEach(async () => {
    one = await startLocks(
      { keyPrefix: prefix },
      { imports: [EventEmitterModule.forRoot()], providers: [Mailer] },
    );
    await one.app.init();
    events = one.app.get(EventEmitter2);
  });
  afterEach(() => one.close());

  const whatRan = () => one.redis.lrange(ran, 0, -1);

  describe.each(['above', 'below'] as const)('with @WithLock %s @OnEvent', (order) => {
    it('case 3: hears an event once, locked, and has committed when emitAsync is over', async () => {
      expect(await events.emitAsync(`placed.${order}`, { id: '7' })).toEqual(['7']);
      expect(await whatRan()).toEqual(['7 under order:7']);
      expect(await one.redis.exists(`${prefix}:{order:7}`)).toBe(0);
    });

    it('case 11: is locked when code calls it', async () => {
      const call = () => one.app.get(Mailer)[order]({ id: '8' });
      expect(await call()).toBe('8');
      await using _lock = await one.locks.acquire('order:8');
      await expect(call()).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
      expect(await whatRan()).toEqual(['8 under order:8']);
    });

    it('does not run when the lock is busy, and the emitter is told', async () => {
      await using _lock = await one.locks.acquire('order:9');
      const emitted = events.emitAsync(`placed.${order}`, { id: '9' });
      await expect(emitted).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED', reason: 'busy' });
      expect(await whatRan()).toEqual([]);
    });
  });

  it('does not run when the lock is busy, and Nest keeps the error to itself where it is to', async () => {
    await using _lock = await one.locks.acquire('order:9');
    expect(await events.emitAsync('suppressed', { id: '9' })).toEqual([undefined]);
    expect(await whatRan()).toEqual([]);
  });

  it('case 3: hears each of two events once', async () => {
    await events.emitAsync('paid', { id: '1' });
    await events.emitAsync('refunded', { id: '2' });
    expect(await whatRan()).toEqual(['1 under order:1', '2 under order:2']);
  });
});
