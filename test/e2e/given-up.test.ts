import {
  Controller,
  Get,
  Injectable,
  Module,
  Param,
  RequestTimeoutException,
  Sse,
  StreamableFile,
  UseInterceptors,
} from '@nestjs/common';
import type {
  CallHandler,
  ExecutionContext,
  INestApplication,
  MessageEvent,
  NestInterceptor,
  PipeTransform,
} from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ExpressAdapter } from '@nestjs/platform-express';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { ClientProxyFactory, MessagePattern, Payload, Transport } from '@nestjs/microservices';
import type { ClientProxy } from '@nestjs/microservices';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { NEVER, firstValueFrom, of, race, switchMap, throwError } from 'rxjs';
import type { Observable } from 'rxjs';
import { LockContext, LockInterceptor, RedisLockModule, WithLock } from '../../lib/index.js';
import { LockScopes } from '../../lib/transaction/lock-scopes.js';
import { eventually } from '../support/eventually.js';
import { assertNothingLeft } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const prefix = `test-given-up-${process.pid}`;

/** Something that the test lets happen. */
class Gate {
  #open = () => undefined as void;
  opened = this.#close();

  #close(): Promise<void> {
    return new Promise((resolve) => (this.#open = resolve));
  }

  open(): void {
    this.#open();
  }

  close(): void {
    this.opened = this.#close();
  }
}
const timeUp = new Gate();
const workDone = new Gate();
const piped = new Gate();

/** As in Nest's documentation, but that the time is up when the test says so. */
@Injectable()
class Timeout implements NestInterceptor {
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const error = throwError(() => new RequestTimeoutException());
    return race(
      next.handle(),
      of(timeUp).pipe(
        switchMap((gate) => gate.opened),
        switchMap(() => error),
      ),
    );
  }
}

/** Answers with something else when the time is up. */
@Injectable()
class Fallback implements NestInterceptor {
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return race(
      next.handle(),
      of(timeUp).pipe(
        switchMap((gate) => gate.opened),
        switchMap(() => of('fallback')),
      ),
    );
  }
}

@Injectable()
class SlowPipe implements PipeTransform {
  async transform(value: unknown): Promise<unknown> {
    await piped.opened;
    return value;
  }
}

const seen = { inside: 0, most: 0, runs: 0, piping: 0 };

@Controller()
class JobsController {
  constructor(private readonly context: LockContext) {}

  @Get('inside/:id')
  @UseInterceptors(Timeout, LockInterceptor('job:<params.id>'))
  inside(@Param('id') id: string): Promise<string> {
    return this.work(id);
  }

  @Get('around/:id')
  @UseInterceptors(LockInterceptor('job:<params.id>'), Timeout)
  around(@Param('id') id: string): Promise<string> {
    return this.work(id);
  }

  @Get('between/:id')
  @UseInterceptors(LockInterceptor('first:<params.id>'), Timeout, LockInterceptor('job:<params.id>'))
  between(@Param('id') id: string): Promise<string> {
    return this.work(id);
  }

  @Get('decorated/:id')
  @UseInterceptors(Timeout)
  @WithLock('job:<id>')
  decorated(@Param('id') id: string): Promise<string> {
    return this.work(id);
  }

  @Get('fallback/:id')
  @UseInterceptors(LockInterceptor('job:<params.id>'), Fallback)
  fallback(@Param('id') id: string): Promise<string> {
    return this.work(id);
  }

  @Get('lazy/:id')
  @UseInterceptors(Timeout, LockInterceptor('job:<params.id>'))
  lazy(@Param('id') id: string): PromiseLike<string> {
    // A query builder, for example, begins when `then` is called.
    // oxlint-disable-next-line unicorn/no-thenable
    return { then: (...how) => this.work(id).then(...how) };
  }

  @Get('piped-inside/:id')
  @UseInterceptors(Timeout, LockInterceptor('job:<params.id>'))
  pipedInside(@Param('id', SlowPipe) id: string): Promise<string> {
    return this.work(id);
  }

  @Get('piped-around/:id')
  @UseInterceptors(LockInterceptor('job:<params.id>'), Timeout)
  pipedAround(@Param('id', SlowPipe) id: string): Promise<string> {
    return this.work(id);
  }

  @Get('plain/:id')
  @UseInterceptors(LockInterceptor('job:<params.id>'))
  plain(@Param('id') id: string): Promise<string> {
    return this.work(id);
  }

  @Sse('events/:id')
  @UseInterceptors(LockInterceptor('job:<params.id>'))
  events(@Param('id') id: string): Observable<MessageEvent> {
    this.context.multi.set(`${prefix}:data:${id}`, 'never');
    seen.runs += 1;
    return NEVER;
  }

  @Get('file/:id')
  @UseInterceptors(LockInterceptor('job:<params.id>'))
  async file(@Param('id') id: string): Promise<StreamableFile> {
    this.context.multi.set(`${prefix}:data:${id}`, 'never');
    return new StreamableFile(Readable.from(['a file']));
  }

  @Get('bytes')
  @UseInterceptors(LockInterceptor('bytes'))
  async bytes(): Promise<StreamableFile> {
    return new StreamableFile(Buffer.from('of memory'));
  }

  @MessagePattern('message')
  @UseInterceptors(LockInterceptor('job:<data.id>'), Timeout)
  message(@Payload('id') id: string): Promise<string> {
    return this.work(id);
  }

  private async work(id: string): Promise<string> {
    seen.runs += 1;
    const { multi } = this.context;
    seen.most = Math.max(seen.most, ++seen.inside);
    try {
      await workDone.opened;
      if (id.startsWith('failing')) throw new Error('mine');
      multi.set(`${prefix}:data:${id}`, 'committed');
      return 'done';
    } finally {
      seen.inside -= 1;
    }
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

describe.each(['express', 'fastify'] as const)('a request that is given up on, on %s', (adapter) => {
  let app: INestApplication;
  let redis: Redis;
  let client: ClientProxy;

  beforeAll(async () => {
    class AppModule {}
    Module({
      imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
      controllers: [JobsController],
    })(AppModule);
    const options = { logger: false } as const;
    app = await (adapter === 'fastify'
      ? NestFactory.create(AppModule, new FastifyAdapter(), options)
      : NestFactory.create(AppModule, new ExpressAdapter(), options));
    const tcp = { transport: Transport.TCP, options: { host: '127.0.0.1', port: await freePort() } } as const;
    app.connectMicroservice(tcp, { inheritAppConfig: true });
    await app.startAllMicroservices();
    client = ClientProxyFactory.create(tcp);
    await app.listen(0, '127.0.0.1');
    redis = new Redis(sharedRedisUrl());
  });
  beforeEach(() => {
    for (const gate of [timeUp, workDone, piped]) gate.close();
    Object.assign(seen, { inside: 0, most: 0, runs: 0 });
  });
  afterAll(async () => {
    await client.close();
    await app.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  const get = async (path: string, init: RequestInit = {}) =>
    fetch(`${await app.getUrl()}/${path}`, { headers: { connection: 'close' }, ...init });
  const isHeld = async (id: string) => (await redis.exists(`${prefix}:{job:${id}}`)) === 1;
  const committed = (id: string) => redis.get(`${prefix}:data:${id}`);

  it.each(['inside', 'around', 'between', 'decorated', 'lazy'])(
    'keeps its lock while its handler runs, and commits what that comes to: %s of the timeout',
    async (path) => {
      const id = `${path}-${adapter}`;
      const first = get(`${path}/${id}`);
      await eventually(() => seen.inside === 1);
      timeUp.open();
      expect((await first).status).toBe(408);
      expect(await isHeld(id)).toBe(true);
      timeUp.close();
      expect((await get(`plain/${id}`)).status).toBe(423);
      workDone.open();
      await eventually(async () => !(await isHeld(id)));
      expect([seen.runs, seen.most, await committed(id)]).toEqual([1, 1, 'committed']);
      expect(await (await get(`${path}/${id}`)).text()).toBe('done');
    },
  );

  it.each(['inside', 'around'])('commits nothing when its handler fails in the end: %s', async (path) => {
    const id = `failing-${path}-${adapter}`;
    const first = get(`${path}/${id}`);
    await eventually(() => seen.inside === 1);
    timeUp.open();
    expect((await first).status).toBe(408);
    expect(await isHeld(id)).toBe(true);
    workDone.open();
    await eventually(async () => !(await isHeld(id)));
    expect(await committed(id)).toBeNull();
  });

  it('is answered with something else only after its handler has ended, and has committed', async () => {
    const id = `fallback-${adapter}`;
    const first = get(`fallback/${id}`);
    await eventually(() => seen.inside === 1);
    timeUp.open();
    expect((await get(`plain/${id}`)).status).toBe(423);
    workDone.open();
    expect(await (await first).text()).toBe('fallback');
    expect([seen.inside, await committed(id), await isHeld(id)]).toEqual([0, 'committed', false]);
  });

  it.each(['piped-inside', 'piped-around'])(
    'never runs its handler without the lock when its pipes took too long: %s',
    async (path) => {
      const id = `${path}-${adapter}`;
      const first = get(`${path}/${id}`);
      await eventually(() => isHeld(id));
      timeUp.open();
      expect((await first).status).toBe(408);
      await eventually(async () => !(await isHeld(id)));
      piped.open();
      timeUp.close();
      workDone.open();
      expect(await (await get(`${path}/${id}`)).text()).toBe('done'); // the pipes of the first one are through as well
      expect(seen.runs).toBe(1);
    },
  );

  it('keeps its lock while its handler runs when the client leaves', async () => {
    const id = `left-${adapter}`;
    const leaving = new AbortController();
    const first = get(`plain/${id}`, { signal: leaving.signal });
    await eventually(() => seen.inside === 1);
    leaving.abort();
    await expect(first).rejects.toThrow();
    expect((await get(`plain/${id}`)).status).toBe(423);
    workDone.open();
    await eventually(async () => !(await isHeld(id)));
    expect([seen.most, await committed(id)]).toEqual([1, 'committed']);
  });

  it('frees the lock of a stream of events when the client leaves before the first one, with nothing committed', async () => {
    const id = `events-${adapter}`;
    const leaving = new AbortController();
    const first = get(`events/${id}`, { signal: leaving.signal }).catch(() => undefined);
    await eventually(() => seen.runs === 1);
    leaving.abort();
    await first;
    await eventually(async () => !(await isHeld(id)));
    expect(await committed(id)).toBeNull();
  });

  it('keeps the lock of a message as well', async () => {
    const id = `message-${adapter}`;
    const answer = firstValueFrom(client.send<string>('message', { id }));
    await eventually(() => seen.inside === 1);
    timeUp.open();
    await expect(answer).rejects.toBeDefined();
    expect(await isHeld(id)).toBe(true);
    workDone.open();
    await eventually(async () => !(await isHeld(id)));
    expect(await committed(id)).toBe('committed');
  });

  it('is refused when its answer would be read after the lock was given up, and one in memory is not', async () => {
    const id = `file-${adapter}`;
    const answer = await get(`file/${id}`);
    expect([answer.status, await committed(id), await isHeld(id)]).toEqual([500, null, false]);
    const bytes = await get('bytes');
    expect([bytes.status, await bytes.text()]).toEqual([200, 'of memory']);
  });
});

describe('LockInterceptor', () => {
  it('leaves nothing of a closed application at its handlers, which live as long as their class', async () => {
    const closed: WeakRef<LockScopes>[] = [];
    for (let i = 0; i < 3; i += 1) closed.push(await answerAndClose());
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    await eventually(() => {
      collect();
      return closed.every((scopes) => scopes.deref() === undefined);
    });
  });
});

/** In a function of its own: what it has on its stack lives as long as it runs. */
async function answerAndClose(): Promise<WeakRef<LockScopes>> {
  class AppModule {}
  Module({
    imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
    controllers: [JobsController],
  })(AppModule);
  const app = await NestFactory.create(AppModule, new ExpressAdapter(), { logger: false });
  await app.listen(0, '127.0.0.1');
  const answer = await fetch(`${await app.getUrl()}/bytes`, { headers: { connection: 'close' } });
  expect(await answer.text()).toBe('of memory');
  const scopes = new WeakRef(app.get(LockScopes, { strict: false }));
  await app.close();
  return scopes;
}
