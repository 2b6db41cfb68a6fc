import { Catch, Controller, Get, HttpException, Module, NotFoundException, Param } from '@nestjs/common';
import type { ArgumentsHost, ExceptionFilter, INestApplication } from '@nestjs/common';
import { APP_FILTER, NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { ExpressAdapter } from '@nestjs/platform-express';
import { Test } from '@nestjs/testing';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { firstValueFrom } from 'rxjs';
import type { Observable } from 'rxjs';
import {
  LockContext,
  LockExceptionFilter,
  LockNotAcquiredError,
  LockTransactionError,
  LockService,
  RedisLockModule,
  WithLock,
} from '../../lib/index.js';
import type { RedisLockModuleOptions } from '../../lib/index.js';
import { assertNothingLeft } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

@Controller('orders')
class OrdersController {
  constructor(private readonly context: LockContext) {}

  @Get('missing')
  @WithLock('missing')
  async missing(): Promise<never> {
    throw new NotFoundException('no such order');
  }

  @Get('broken')
  @WithLock('broken')
  async broken(): Promise<never> {
    throw new Error('secret detail');
  }

  @Get('lost')
  @WithLock('lost', { retries: 0 })
  async lost(): Promise<void> {
    this.context.multi.set('never', 1);
    await this.context.redis.del(`${prefix}:{lost}`);
  }

  @WithLock('order:<id>')
  @Get(':id')
  async get(@Param('id') id: string): Promise<string> {
    return `order ${id}`;
  }
}

const prefix = `test-http-${process.pid}`;

async function start(
  adapter: 'express' | 'fastify',
  options: RedisLockModuleOptions = {},
  filters: object[] = [],
) {
  class AppModule {}
  Module({
    imports: [
      RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix, ttl: 4_000, ...options }),
    ],
    controllers: [OrdersController],
    providers: filters.map((filter) => ({ provide: APP_FILTER, useValue: filter })),
  })(AppModule);
  const app = await (adapter === 'fastify'
    ? NestFactory.create(AppModule, new FastifyAdapter(), { logger: false })
    : NestFactory.create(AppModule, new ExpressAdapter(), { logger: false }));
  return app as INestApplication;
}

const get = async (app: INestApplication, path: string) => {
  const response = await fetch(`${await app.getUrl()}${path}`, { headers: { connection: 'close' } });
  const text = await response.text();
  return { status: response.status, retryAfter: response.headers.get('retry-after'), text };
};

describe.each(['express', 'fastify'] as const)('over HTTP on %s, a locked route', (adapter) => {
  let app: INestApplication;
  let redis: Redis;

  beforeAll(async () => {
    redis = new Redis(sharedRedisUrl());
    app = await start(adapter);
    await app.listen(0, '127.0.0.1');
  });
  afterAll(async () => {
    await app.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  it('answers as without a lock', async () => {
    expect(await get(app, '/orders/7')).toMatchObject({ status: 200, text: 'order 7' });
  });

  it('case 26: answers 423 with Retry-After when the lock is busy, and names no resource', async () => {
    await using _lock = await app.get(LockService).acquire('order:8');
    const answer = await get(app, '/orders/8');
    expect(answer.status).toBe(423);
    expect(Number(answer.retryAfter)).toBeGreaterThanOrEqual(1);
    expect(Number(answer.retryAfter)).toBeLessThanOrEqual(4);
    expect(JSON.parse(answer.text)).toEqual({
      statusCode: 423,
      error: 'Locked',
      message: expect.stringContaining('locked'),
      code: 'LOCK_NOT_ACQUIRED',
    });
  });

  it('case 26: answers 409 when the lock was lost', async () => {
    const answer = await get(app, '/orders/lost');
    expect(answer).toMatchObject({ status: 409, retryAfter: null });
    expect(JSON.parse(answer.text)).toMatchObject({ code: 'LOCK_LOST' });
    expect(await redis.exists('never')).toBe(0);
  });

  it("answers the handler's own errors as without a lock", async () => {
    expect(await get(app, '/orders/missing')).toMatchObject({ status: 404 });
    const broken = await get(app, '/orders/broken');
    expect(broken.status).toBe(500);
    expect(broken.text).not.toContain('secret');
  });

  it('case 26: answers 503 when Redis is not there', async () => {
    const down = await start(adapter, { connection: 'redis://127.0.0.1:1', commandTimeout: 100 });
    await down.listen(0, '127.0.0.1');
    try {
      const answer = await get(down, '/orders/7');
      expect(answer.status).toBe(503);
      expect(JSON.parse(answer.text)).toMatchObject({ code: 'LOCK_UNAVAILABLE' });
    } finally {
      await down.close();
    }
  });

  it('is answered without Retry-After where the application wants no filter of ours', async () => {
    const plain = await start(adapter, { httpErrors: false });
    await plain.listen(0, '127.0.0.1');
    try {
      await using _lock = await plain.get(LockService).acquire('order:9');
      expect(await get(plain, '/orders/9')).toMatchObject({ status: 423, retryAfter: null });
    } finally {
      await plain.close();
    }
  });

  it("is answered by the application's own filter, however that is registered", async () => {
    @Catch()
    class OwnFilter implements ExceptionFilter {
      catch(exception: HttpException, host: ArgumentsHost): void {
        const response = host
          .switchToHttp()
          .getResponse<{ status(code: number): { send(body: string): void } }>();
        response
          .status(exception.getStatus())
          .send(`own: ${(exception as unknown as { code: string }).code}`);
      }
    }
    for (const how of ['provided', 'used'] as const) {
      const own = await start(adapter, {}, how === 'provided' ? [new OwnFilter()] : []);
      try {
        if (how === 'used') own.useGlobalFilters(new OwnFilter());
        await own.listen(0, '127.0.0.1');
        await using _lock = await own.get(LockService).acquire('order:10');
        expect(await get(own, '/orders/10')).toMatchObject({ status: 423, text: 'own: LOCK_NOT_ACQUIRED' });
      } finally {
        await own.close();
      }
    }
  });
});

it('case 26: in an application of @nestjs/testing a busy lock is a 423 as well', async () => {
  const module = await Test.createTestingModule({
    imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
    controllers: [OrdersController],
  }).compile();
  const app = module.createNestApplication({ logger: false });
  await app.listen(0, '127.0.0.1');
  try {
    await using _lock = await app.get(LockService).acquire('order:11');
    const answer = await get(app, '/orders/11');
    expect([answer.status, answer.retryAfter !== null]).toEqual([423, true]);
  } finally {
    await app.close();
  }
});

describe('outside of HTTP, a lock error', () => {
  const busy = new LockNotAcquiredError('busy', { resources: ['secret:7'], retryAfter: 1_500 });
  const told = {
    status: 'error',
    statusCode: 423,
    message: expect.stringContaining('locked'),
    code: 'LOCK_NOT_ACQUIRED',
    reason: 'busy',
    retryAfter: 1_500,
  };

  it('is told to the caller of a message handler, with its code and without the resource', async () => {
    const answer = new LockExceptionFilter().catch(busy, hostOf('rpc'));
    const error = await firstValueFrom(answer as Observable<never>).catch((reason: unknown) => reason);
    expect(error).toEqual(told);
    expect(JSON.stringify(error)).not.toContain('secret');
  });

  it('is told to the client of a gateway, of socket.io and of ws', () => {
    const said: unknown[] = [];
    const socketIo = { emit: (event: string, data: unknown) => said.push({ event, data }) };
    const ws = {
      readyState: 1,
      send: (text: string) => said.push(JSON.parse(text)),
      emit: () => said.push('wrong'),
    };
    for (const client of [socketIo, ws]) void new LockExceptionFilter().catch(busy, hostOf('ws', client));
    expect(said).toEqual([
      { event: 'exception', data: told },
      { event: 'exception', data: told },
    ]);
  });

  it('that is no answer to a caller has its code, and nothing of what happened inside', async () => {
    const inside = new LockTransactionError('lpush failed on secret', { applied: 'partial' });
    const answer = new LockExceptionFilter().catch(inside, hostOf('rpc'));
    await expect(firstValueFrom(answer as Observable<never>)).rejects.toEqual({
      status: 'error',
      statusCode: 500,
      message: 'Internal server error',
      code: 'LOCK_TRANSACTION_FAILED',
    });
  });

  it('does not name the resource to a client of GraphQL', () => {
    const thrown = () => new LockExceptionFilter().catch(busy, hostOf('graphql'));
    expect(thrown).toThrow(HttpException);
    expect(thrown).not.toThrow(/secret/);
  });

  it('goes on as it is where nobody knows how to answer', () => {
    expect(() => new LockExceptionFilter().catch(busy, hostOf('something else'))).toThrow(busy);
  });
});

const hostOf = (type: string, client?: object) =>
  ({ getType: () => type, switchToWs: () => ({ getClient: () => client }) }) as unknown as ArgumentsHost;
