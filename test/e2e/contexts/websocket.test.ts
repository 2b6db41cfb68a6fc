import { once } from 'node:events';
import { Module, UseFilters, UseInterceptors } from '@nestjs/common';
import type { INestApplication } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ExpressAdapter } from '@nestjs/platform-express';
import { WsAdapter } from '@nestjs/platform-ws';
import { MessageBody, SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { Observable, map, of, tap } from 'rxjs';
import { WebSocket } from 'ws';
import {
  LockContext,
  LockExceptionFilter,
  LockInterceptor,
  LockService,
  RedisLockModule,
  WithLock,
} from '../../../lib/index.js';
import { eventually } from '../../support/eventually.js';
import { assertNothingLeft } from '../../support/lock-application.js';
import { sharedRedisUrl } from '../../support/redis/test-redis.js';

const prefix = `test-websocket-${process.pid}`;
const ran = `${prefix}:data:ran`;

interface Message {
  event: string;
  data: unknown;
}

@WebSocketGateway()
@UseFilters(LockExceptionFilter)
class SeatsGateway {
  constructor(private readonly context: LockContext) {}

  @WithLock('seat:<id>')
  @SubscribeMessage('above')
  async above(@MessageBody('id') seat: string): Promise<Message> {
    return this.note(seat);
  }

  @SubscribeMessage('below')
  @WithLock('seat:<id>')
  async below(@MessageBody('id') seat: string): Promise<Message> {
    return this.note(seat);
  }

  @SubscribeMessage('intercepted')
  @UseInterceptors(LockInterceptor('seat:<data.id>'))
  async intercepted(@MessageBody('id') seat: string): Promise<Message> {
    return this.note(seat);
  }

  @SubscribeMessage('stream')
  @WithLock('seat:<id>')
  stream(@MessageBody('id') seat: string): Observable<Message> {
    const { multi } = this.context;
    return of(1, 2).pipe(
      tap((value) => multi.rpush(ran, `${seat}=${value}`)),
      map((value) => ({ event: 'value', data: value })),
    );
  }

  private async note(seat: string): Promise<Message> {
    const { lock, redis, multi } = this.context;
    const held = await redis.exists(`${prefix}:{${lock.resources[0]}}`);
    multi.rpush(ran, `${seat} ${held ? 'under' : 'without'} ${lock.resources[0]}`);
    return { event: 'booked', data: seat };
  }
}

@WebSocketGateway({ path: '/unfiltered' })
class UnfilteredGateway {
  @SubscribeMessage('busy')
  @WithLock('seat:<id>')
  async busy(@MessageBody('id') _seat: string): Promise<Message> {
    return { event: 'booked', data: 'never' };
  }
}

describe('a locked handler of a WebSocket gateway', () => {
  let app: INestApplication;
  let redis: Redis;
  let client: WebSocket;
  let unfiltered: WebSocket;

  beforeAll(async () => {
    class AppModule {}
    Module({
      imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
      providers: [SeatsGateway, UnfilteredGateway],
    })(AppModule);
    app = await NestFactory.create(AppModule, new ExpressAdapter(), { logger: false });
    app.useWebSocketAdapter(new WsAdapter(app));
    await app.listen(0, '127.0.0.1');
    redis = new Redis(sharedRedisUrl());
    const url = (await app.getUrl()).replace('http', 'ws');
    client = new WebSocket(url);
    unfiltered = new WebSocket(`${url}/unfiltered`);
    await Promise.all([once(client, 'open'), once(unfiltered, 'open')]);
  });
  afterEach(async () => void (await redis.del(ran)));
  afterAll(async () => {
    for (const each of [client, unfiltered]) {
      each.close();
      await once(each, 'close');
    }
    await app.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  /** Sends one message; resolves with the first so many that come back. */
  const ask = async (event: string, id: string, { to = client, answers = 1 } = {}) => {
    const received: Message[] = [];
    const listen = (raw: Buffer) => void received.push(JSON.parse(raw.toString()) as Message);
    to.on('message', listen);
    try {
      to.send(JSON.stringify({ event, data: { id } }));
      await eventually(() => received.length >= answers);
    } finally {
      to.off('message', listen);
    }
    return received;
  };
  const whatRan = () => redis.lrange(ran, 0, -1);
  const acquire = (resource: string) => app.get(LockService).acquire(resource);

  describe.each(['above', 'below'] as const)('with @WithLock %s @SubscribeMessage', (order) => {
    it('case 3: answers a message once, locked by what @MessageBody names, and has committed by then', async () => {
      expect(await ask(order, '7')).toEqual([{ event: 'booked', data: '7' }]);
      expect(await whatRan()).toEqual(['7 under seat:7']);
      expect(await redis.exists(`${prefix}:{seat:7}`)).toBe(0);
    });

    it('case 11: is locked when code calls it', async () => {
      expect(await app.get(SeatsGateway)[order]('8')).toEqual({ event: 'booked', data: '8' });
      await using _lock = await acquire('seat:8');
      await expect(app.get(SeatsGateway)[order]('8')).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
      expect(await whatRan()).toEqual(['8 under seat:8']);
    });

    it('tells the client that the lock is busy, with the code and no name, and goes on listening', async () => {
      await using _lock = await acquire('seat:secret');
      const answers = await ask(order, 'secret');
      expect(answers).toMatchObject([
        { event: 'exception', data: { status: 'error', code: 'LOCK_NOT_ACQUIRED', statusCode: 423 } },
      ]);
      expect(JSON.stringify(answers)).not.toContain('secret');
      expect(await ask(order, '9')).toEqual([{ event: 'booked', data: '9' }]);
      expect(await whatRan()).toEqual(['9 under seat:9']);
    });
  });

  it('case 5: sends all values of a stream, and commits at its end', async () => {
    expect(await ask('stream', '10', { answers: 2 })).toEqual([
      { event: 'value', data: 1 },
      { event: 'value', data: 2 },
    ]);
    await eventually(async () => (await redis.exists(`${prefix}:{seat:10}`)) === 0);
    expect(await whatRan()).toEqual(['10=1', '10=2']);
  });

  it('case 5: tells the client of a stream that the lock is busy, with the code', async () => {
    await using _lock = await acquire('seat:11');
    expect(await ask('stream', '11')).toMatchObject([
      { event: 'exception', data: { code: 'LOCK_NOT_ACQUIRED' } },
    ]);
  });

  it('LockInterceptor locks by the data of the message, and tells the client when that is busy', async () => {
    expect(await ask('intercepted', '12')).toEqual([{ event: 'booked', data: '12' }]);
    expect(await whatRan()).toEqual(['12 under seat:12']);
    await using _lock = await acquire('seat:13');
    expect(await ask('intercepted', '13')).toMatchObject([
      { event: 'exception', data: { code: 'LOCK_NOT_ACQUIRED' } },
    ]);
    expect(await whatRan()).toEqual(['12 under seat:12']);
  });

  it('tells the client of a gateway without the filter that there was an error, instead of a hang', async () => {
    await using _lock = await acquire('seat:14');
    expect(await ask('busy', '14', { to: unfiltered })).toMatchObject([
      { event: 'exception', data: { status: 'error' } },
    ]);
  });
});
