import {
  Body,
  Controller,
  Get,
  HttpCode,
  Injectable,
  Module,
  Param,
  Post,
  SetMetadata,
  UseGuards,
  UseInterceptors,
  ValidationPipe,
} from '@nestjs/common';
import type {
  CallHandler,
  CanActivate,
  ExecutionContext,
  INestApplication,
  NestInterceptor,
} from '@nestjs/common';
import { NestFactory, Reflector } from '@nestjs/core';
import { ExpressAdapter } from '@nestjs/platform-express';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { IsInt } from 'class-validator';
import { Redis } from 'ioredis';
import { map } from 'rxjs';
import type { Observable } from 'rxjs';
import { LockContext, LockService, RedisLockModule, WithLock } from '../../../lib/index.js';
import { assertNothingLeft } from '../../support/lock-application.js';
import { sharedRedisUrl } from '../../support/redis/test-redis.js';

const prefix = `test-guards-${process.pid}`;
const ran = `${prefix}:data:ran`;

const Roles = (...roles: string[]) => SetMetadata('roles', roles);

@Injectable()
class RolesGuard implements CanActivate {
  constructor(private readonly reflector: Reflector) {}

  canActivate(context: ExecutionContext): boolean {
    const roles = this.reflector.get<string[] | undefined>('roles', context.getHandler());
    const { headers } = context.switchToHttp().getRequest<{ headers: { 'x-role': string } }>();
    return roles === undefined || roles.includes(headers['x-role']);
  }
}

class StampInterceptor implements NestInterceptor {
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return next.handle().pipe(map((value: unknown) => ({ stamped: value })));
  }
}

class StockDto {
  @IsInt()
  amount!: number;
}

/** Called by the handlers; nobody hands it the lock. */
@Injectable()
class Ledger {
  constructor(private readonly context: LockContext) {}

  async note(what: string): Promise<string> {
    const { lock, multi, redis } = this.context;
    const [resource = ''] = lock.resources;
    const held = await redis.exists(`${prefix}:{${resource}}`);
    multi.rpush(ran, `${what} ${held ? 'under' : 'without'} ${resource}`);
    return resource;
  }
}

@Controller()
class StockController {
  constructor(private readonly ledger: Ledger) {}

  @WithLock('stock:<id>')
  @Post('above/:id')
  @HttpCode(202)
  @Roles('admin')
  @UseGuards(RolesGuard)
  @UseInterceptors(StampInterceptor)
  async above(@Param('id') name: string, @Body() body: StockDto): Promise<string> {
    return this.ledger.note(`${name}=${body.amount}`);
  }

  @Post('below/:id')
  @HttpCode(202)
  @Roles('admin')
  @UseGuards(RolesGuard)
  @UseInterceptors(StampInterceptor)
  @WithLock('stock:<id>')
  async below(@Param('id') name: string, @Body() body: StockDto): Promise<string> {
    return this.ledger.note(`${name}=${body.amount}`);
  }

  @WithLock('stock:<id>')
  @Get('above/:id')
  async readAbove(@Param('id') name: string): Promise<string> {
    return this.ledger.note(name);
  }

  @Get('below/:id')
  @WithLock('stock:<id>')
  async readBelow(@Param('id') name: string): Promise<string> {
    return this.ledger.note(name);
  }
}

describe.each(['express', 'fastify'] as const)('on %s, a locked route', (adapter) => {
  let app: INestApplication;
  let redis: Redis;

  beforeAll(async () => {
    class AppModule {}
    Module({
      imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
      controllers: [StockController],
      providers: [Ledger],
    })(AppModule);
    app = await (adapter === 'fastify'
      ? NestFactory.create(AppModule, new FastifyAdapter(), { logger: false })
      : NestFactory.create(AppModule, new ExpressAdapter(), { logger: false }));
    app.useGlobalPipes(new ValidationPipe());
    await app.listen(0, '127.0.0.1');
    redis = new Redis(sharedRedisUrl());
  });
  beforeEach(async () => {
    const keys = await redis.keys(`${prefix}:*`);
    if (keys.length > 0) await redis.del(...keys);
  });
  afterAll(async () => {
    await app.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  const request = async (path: string, { role = 'admin', body }: { role?: string; body?: object } = {}) => {
    const response = await fetch(`${await app.getUrl()}/${path}`, {
      method: body ? 'POST' : 'GET',
      headers: { connection: 'close', 'content-type': 'application/json', 'x-role': role },
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    return { status: response.status, text: await response.text() };
  };
  const everyKey = () => redis.keys(`${prefix}:*`);
  const whatRan = () => redis.lrange(ran, 0, -1);

  describe.each(['above', 'below'])('with @WithLock %s the other decorators', (order) => {
    it('case 1: still refuses a caller without the role, and takes no lock', async () => {
      const answer = await request(`${order}/7`, { role: 'guest', body: { amount: 1 } });
      expect(answer.status).toBe(403);
      expect(await everyKey()).toEqual([]);
    });

    it('case 1: keeps its status and its interceptor, and runs once under its lock', async () => {
      const answer = await request(`${order}/7`, { body: { amount: 3 } });
      expect([answer.status, JSON.parse(answer.text)]).toEqual([202, { stamped: 'stock:7' }]);
      expect(await whatRan()).toEqual(['7=3 under stock:7']);
      expect(await redis.exists(`${prefix}:{stock:7}`)).toBe(0);
    });

    it('case 12: answers 400 for an invalid body before a lock is taken', async () => {
      expect((await request(`${order}/7`, { body: { amount: 'many' } })).status).toBe(400);
      expect(await everyKey()).toEqual([]);
    });

    it('case 12: a POST gives a service that the handler calls the LockContext, without middleware', async () => {
      await Promise.all(['a', 'b', 'c'].map((id) => request(`${order}/${id}`, { body: { amount: 1 } })));
      expect((await whatRan()).toSorted()).toEqual([
        'a=1 under stock:a',
        'b=1 under stock:b',
        'c=1 under stock:c',
      ]);
    });

    it('case 3: @Get is found, and runs once under the lock of the parameter that @Param names', async () => {
      expect(await request(`${order}/8`)).toEqual({ status: 200, text: 'stock:8' });
      expect(await whatRan()).toEqual(['8 under stock:8']);
    });

    it('case 11: the same method is locked when code calls it', async () => {
      const controller = app.get(StockController);
      const call = () => (order === 'above' ? controller.readAbove('9') : controller.readBelow('9'));
      expect(await call()).toBe('stock:9');
      await using _lock = await app.get(LockService).acquire('stock:9');
      await expect(call()).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
      expect(await whatRan()).toEqual(['9 under stock:9']);
    });

    it('answers 423 when the lock is busy, and the handler does not run', async () => {
      await using _lock = await app.get(LockService).acquire('stock:7');
      const answer = await request(`${order}/7`, { body: { amount: 1 } });
      expect([answer.status, JSON.parse(answer.text)]).toMatchObject([423, { code: 'LOCK_NOT_ACQUIRED' }]);
      expect(await whatRan()).toEqual([]);
    });
  });
});
