import { Controller, Get, Injectable, Param, SetMetadata } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  LockConfigurationError,
  LockContext,
  LockKeyError,
  LockNotAcquiredError,
  RedisLockModule,
  WithLock,
} from '../../lib/index.js';
import { startCountingProxy } from '../support/counting-proxy.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

interface Order {
  customer: { id: number };
}

@Injectable()
class Shop {
  seen: unknown[] = [];

  constructor(private readonly context: LockContext) {}

  @WithLock('order:<id>')
  async order(id: string, to: string): Promise<string> {
    this.seen = this.context.lock.resources as unknown[];
    this.context.multi.set(to, id);
    return `${id} by ${this.constructor.name}`;
  }

  @WithLock('customer:<order.customer.id>')
  async customer(_first: string, order: Order): Promise<readonly string[]> {
    return [...this.context.lock.resources, String(order.customer.id)];
  }

  @WithLock(['from:<0>', 'to:<1>'])
  async transfer(_from: string, _to: string): Promise<readonly string[]> {
    return this.context.lock.resources;
  }

  @WithLock((order: Order) => `customer:${order.customer.id}`, { ttl: 500 })
  async byFunction(_order: Order): Promise<readonly string[]> {
    return this.context.lock.resources;
  }

  @WithLock('order:<id>', { slot: 'orders' })
  async inSlot(id: string): Promise<string> {
    return `${this.context.key('items', id)} of ${this.context.lock.resources.join()}`;
  }

  @WithLock('fails')
  async fails(error: unknown): Promise<void> {
    throw error;
  }

  @SetMetadata('role', 'admin')
  @WithLock('meta')
  @SetMetadata('audience', 'all')
  async meta(_a: string, _b: string): Promise<void> {}
}

@Injectable()
class OtherService {
  @WithLock('order:<0>')
  async somethingElse(_id: string): Promise<void> {}
}

@Controller('orders')
class OrdersController {
  @Get(':id')
  @WithLock('order:<id>')
  async get(@Param('id') id: string): Promise<string> {
    return id;
  }
}

describe('@WithLock', () => {
  let one: LockApplication;
  let shop: Shop;

  beforeAll(async () => {
    one = await startLocks({}, { providers: [Shop, OtherService], controllers: [OrdersController] });
    shop = one.app.get(Shop);
  });
  afterAll(() => one.close());

  const owner = (resource: string) => one.redis.get(`${one.prefix}:{${resource}}`);

  it('runs the method under the lock its arguments name, and commits what it queued', async () => {
    expect(await shop.order('42', one.key('order'))).toBe('42 by Shop');
    expect(shop.seen).toEqual(['order:42']);
    expect(await one.redis.get(one.key('order'))).toBe('42');
    expect(await owner('order:42')).toBeNull();
  });

  it('takes values from inside of an argument, several keys, and a function', async () => {
    expect(await shop.customer('x', { customer: { id: 7 } })).toEqual(['customer:7', '7']);
    expect(await shop.transfer('b', 'a')).toEqual(['from:b', 'to:a']);
    expect(await shop.byFunction({ customer: { id: 8 } })).toEqual(['customer:8']);
  });

  it('case 29: names the lock anew for each call', async () => {
    await shop.order('1', one.key('order'));
    await shop.order('2', one.key('order'));
    expect(shop.seen).toEqual(['order:2']);
  });

  it('case 28: only the template decides about the key: two services share a lock', async () => {
    await using _lock = await one.locks.acquire('order:28');
    await expect(one.app.get(OtherService).somethingElse('28')).rejects.toMatchObject({ reason: 'busy' });
    await expect(shop.order('28', one.key('order'))).rejects.toMatchObject({ reason: 'busy' });
  });

  it('with a slot has it as the hash tag of the lock and of the keys it names', async () => {
    expect(await shop.inSlot('7')).toBe('{orders}:items:7 of order:7');
    expect(await one.redis.exists(`${one.prefix}:fence:{orders}:order:7`)).toBe(1);
  });

  it('refuses a second call on the same key while the first runs, and lets another key pass', async () => {
    await using _lock = await one.locks.acquire('order:9');
    await expect(shop.order('9', one.key('order'))).rejects.toBeInstanceOf(LockNotAcquiredError);
    expect(await shop.order('10', one.key('order'))).toBe('10 by Shop');
  });

  it("rejects with the method's own error object, and frees the lock", async () => {
    const own = new Error('mine');
    await expect(shop.fails(own)).rejects.toBe(own);
    expect(await owner('fails')).toBeNull();
  });

  it('keeps metadata, name and length of the method, above and below', () => {
    const { meta } = Shop.prototype;
    expect(Reflect.getMetadata('audience', meta)).toBe('all');
    expect(Reflect.getMetadata('role', meta)).toBe('admin');
    expect([meta.name, meta.length]).toEqual(['meta', 2]);
  });

  it('works on a controller method', async () => {
    expect(await one.app.get(OrdersController).get('5')).toBe('5');
  });

  it('rejects before Redis is asked when a value is missing', async () => {
    const proxy = await startCountingProxy(sharedRedisUrl());
    const counted = await startLocks({ url: sharedRedisUrl(), connection: proxy.url }, { providers: [Shop] });
    try {
      const call = counted.app.get(Shop);
      await call.order('warm', counted.key('order'));
      proxy.reset();
      const missing = call.order(undefined as unknown as string, counted.key('order'));
      await expect(missing).rejects.toBeInstanceOf(LockKeyError);
      await expect(call.customer('x', {} as Order)).rejects.toMatchObject({ code: 'LOCK_KEY_INVALID' });
      expect(proxy.roundTrips()).toBe(0);
    } finally {
      await counted.close();
      await proxy.close();
    }
  });

  it('fails when the class is defined, naming class, method and placeholder, when a placeholder binds to nothing', () => {
    const define = () => {
      class Misspelt {
        @WithLock('order:<orderId>')
        async buy(_id: string): Promise<void> {}
      }
      return Misspelt;
    };
    expect(define).toThrow(LockConfigurationError);
    expect(define).toThrow(/Misspelt\.buy.*<orderId>/);
  });

  it('fails when the class is defined for a wrong option, naming it', () => {
    const define = () => {
      class Wrong {
        @WithLock('order', { ttl: 1 })
        async buy(): Promise<void> {}
      }
      return Wrong;
    };
    expect(define).toThrow(/"ttl" of @WithLock on Wrong\.buy/);
    expect(define).toThrow(LockConfigurationError);
  });

  it('never runs unlocked: an instance that Nest did not make is refused', async () => {
    const byHand = new Shop(one.context);
    await expect(byHand.order('1', one.key('by-hand'))).rejects.toMatchObject({ code: 'LOCK_CONFIGURATION' });
    expect(await one.redis.get(one.key('by-hand'))).toBeNull();
    const unbound = shop.order as (...args: string[]) => Promise<string>;
    await expect(unbound.call(undefined, '1', one.key('by-hand'))).rejects.toBeInstanceOf(
      LockConfigurationError,
    );
  });

  it('without the module the application does not start, and says what is missing', async () => {
    const compiled = Test.createTestingModule({
      providers: [Shop, { provide: LockContext, useValue: {} }],
    }).compile();
    await expect(compiled).rejects.toThrow(
      /LockService, is RedisLockModule imported\? .*two copies.*npm ls nestjs-redis-lock/,
    );
  });

  it('uses the instance that is named', async () => {
    @Injectable()
    class Billing {
      constructor(private readonly context: LockContext) {}

      @WithLock('invoice', { instance: 'billing' })
      async bill(): Promise<string> {
        return this.context.lock.token;
      }
    }
    const prefix = `${one.prefix}-billing`;
    const named = await startLocks(
      {},
      {
        imports: [
          RedisLockModule.forRoot({ name: 'billing', connection: sharedRedisUrl(), keyPrefix: prefix }),
        ],
        providers: [Billing],
      },
    );
    expect(await named.app.get(Billing).bill()).toContain(':');
    expect(await named.redis.exists(`${prefix}:fence:{invoice}`)).toBe(1);
    await named.redis.del(`${prefix}:fence:{invoice}`);
    await named.close();
  });
});
