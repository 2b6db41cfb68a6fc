import {
  Body,
  Controller,
  Get,
  HttpCode,
  Module,
  Param,
  ParseIntPipe,
  Post,
  Sse,
  UseInterceptors,
} from '@nestjs/common';
import type { CanActivate, ExecutionContext, INestApplication, MessageEvent } from '@nestjs/common';
import { APP_GUARD, NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { ExpressAdapter } from '@nestjs/platform-express';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { of } from 'rxjs';
import type { Observable } from 'rxjs';
import {
  LockConfigurationError,
  LockContext,
  LockInterceptor,
  LockService,
  RedisLockModule,
} from '../../lib/index.js';
import type { LockInterceptorOptions } from '../../lib/index.js';
import { assertNothingLeft } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const prefix = `test-interceptor-${process.pid}`;

@Controller('carts')
class CartsController {
  constructor(private readonly context: LockContext) {}

  @Post(':id')
  @HttpCode(200)
  @UseInterceptors(LockInterceptor('cart:<params.id>:<user.id>:<body.item>'))
  add(@Param('id', ParseIntPipe) id: number, @Body() body: { item: string }): object {
    this.context.multi.set(`${prefix}:data:cart`, `${id}:${body.item}`);
    return { resources: this.context.lock.resources };
  }

  @Get('lost')
  @UseInterceptors(LockInterceptor('lost', { retries: 0 }))
  async lost(): Promise<string> {
    this.context.multi.set(`${prefix}:data:lost`, 'never');
    await this.context.redis.del(`${prefix}:{lost}`);
    return 'must not be seen';
  }

  @Get('rerun')
  @UseInterceptors(LockInterceptor('rerun'))
  async rerun(): Promise<string> {
    const { redis, multi } = this.context;
    const runs = await redis.incr(`${prefix}:data:runs`);
    multi.incr(`${prefix}:data:applied`);
    if (runs === 1) await redis.del(`${prefix}:{rerun}`);
    return `run ${runs}`;
  }

  @Get('skipped')
  @UseInterceptors(LockInterceptor('skipped', { onBusy: 'skip' }))
  skipped(): string {
    return 'ran';
  }

  @Get('instead')
  @UseInterceptors(LockInterceptor('skipped', { onBusy: () => undefined }))
  instead(): string {
    return 'ran';
  }

  @Get('by-function/:id')
  @UseInterceptors(
    LockInterceptor(
      (context) => `f:${context.switchToHttp().getRequest<{ params: { id: string } }>().params.id}`,
    ),
  )
  byFunction(): readonly string[] {
    return this.context.lock.resources;
  }

  @Sse('events')
  @UseInterceptors(LockInterceptor('events'))
  events(): Observable<MessageEvent> {
    return of({ data: 'one' }, { data: 'two' });
  }
}

describe.each(['express', 'fastify'] as const)('LockInterceptor over HTTP on %s', (adapter) => {
  let app: INestApplication;
  let redis: Redis;

  beforeAll(async () => {
    const guard: CanActivate = {
      canActivate: (context: ExecutionContext) => {
        context.switchToHttp().getRequest<{ user: object }>().user = { id: 'u1' };
        return true;
      },
    };
    class AppModule {}
    Module({
      imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
      controllers: [CartsController],
      providers: [{ provide: APP_GUARD, useValue: guard }],
    })(AppModule);
    const options = { logger: false } as const;
    app = await (adapter === 'fastify'
      ? NestFactory.create(AppModule, new FastifyAdapter(), options)
      : NestFactory.create(AppModule, new ExpressAdapter(), options));
    await app.listen(0, '127.0.0.1');
    redis = new Redis(sharedRedisUrl());
  });
  afterAll(async () => {
    await app.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  const request = async (path: string, body?: object) => {
    const response = await fetch(`${await app.getUrl()}${path}`, {
      method: body ? 'POST' : 'GET',
      headers: { connection: 'close', 'content-type': 'application/json' },
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    return {
      status: response.status,
      text: await response.text(),
      retryAfter: response.headers.get('retry-after'),
    };
  };

  it('locks by the request, and commits before it answers', async () => {
    const answer = await request('/carts/7', { item: 'a b' });
    expect(answer.status).toBe(200);
    expect(JSON.parse(answer.text)).toEqual({ resources: ['cart:7:u1:a%20b'] });
    expect(await redis.get(`${prefix}:data:cart`)).toBe('7:a b');
  });

  it('answers 423 when the lock is busy', async () => {
    await using _lock = await app.get(LockService).acquire('cart:7:u1:x');
    const answer = await request('/carts/7', { item: 'x' });
    expect([answer.status, answer.retryAfter !== null]).toEqual([423, true]);
  });

  it('answers 400 for a missing value, and locks before pipes run', async () => {
    const answer = await request('/carts/7', {});
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.text)).toEqual({
      statusCode: 400,
      error: 'Bad Request',
      message: 'A value that the request has to name is missing, or is not usable',
      code: 'LOCK_KEY_INVALID',
    }); // and nothing of how we lock
    await using _lock = await app.get(LockService).acquire('cart:no-number:u1:x');
    expect((await request('/carts/no-number', { item: 'x' })).status).toBe(423);
    await _lock.release();
    expect((await request('/carts/no-number', { item: 'x' })).status).toBe(400);
    expect(await redis.exists(`${prefix}:{cart:no-number:u1:x}`)).toBe(0);
  });

  it('does not show the value of a handler whose commit was refused', async () => {
    const answer = await request('/carts/lost');
    expect(answer.status).toBe(409);
    expect(answer.text).not.toContain('must not be seen');
    expect(await redis.exists(`${prefix}:data:lost`)).toBe(0);
  });

  it('runs the handler again when its commit was refused', async () => {
    await redis.del(`${prefix}:data:runs`, `${prefix}:data:applied`);
    expect(await request('/carts/rerun')).toMatchObject({ status: 200, text: 'run 2' });
    expect(await redis.get(`${prefix}:data:applied`)).toBe('1');
  });

  it('skips what is busy, where that is wanted', async () => {
    await using _lock = await app.get(LockService).acquire('skipped');
    expect(await request('/carts/skipped')).toMatchObject({ status: 200, text: '' });
    expect(await request('/carts/instead')).toMatchObject({ status: 200, text: '' });
    await _lock.release();
    expect(await request('/carts/skipped')).toMatchObject({ status: 200, text: 'ran' });
  });

  it('takes a function of the context', async () => {
    expect(JSON.parse((await request('/carts/by-function/9')).text)).toEqual(['f:9']);
  });

  it('case 5: locks a stream of events from its start to its end', async () => {
    const answer = await request('/carts/events');
    expect(answer.text).toMatch(/data: one[^]*data: two/);
    expect(await redis.exists(`${prefix}:{events}`)).toBe(0);
  });
});

describe('LockInterceptor', () => {
  it.each(['cart:<id>', 'cart:<req.id>', 'cart:<0.id>', ''])(
    'refuses a key that names no source: %p',
    (key) => {
      expect(() => LockInterceptor(key)).toThrow(LockConfigurationError);
    },
  );

  it('names a wrong option', () => {
    expect(() => LockInterceptor('x', { ttl: 1 })).toThrow(/"ttl"/);
    expect(() => LockInterceptor('x', null as never)).toThrow(LockConfigurationError);
    const ofDecorator = { returns: 'promise' } as LockInterceptorOptions;
    expect(() => LockInterceptor('x', ofDecorator)).toThrow(
      /"returns".*there are ttl, .*, onBusy, instance$/,
    );
  });

  it('says what a template can take from a request, and nothing that only helps with methods', () => {
    const define = () => LockInterceptor('cart:<param.id>');
    expect(define).toThrow(/<param\.id>.*there are <params\.x>, <query\.x>, .*<args\.x>$/);
    expect(define).not.toThrow(/LockParam|<0>/);
  });
});
