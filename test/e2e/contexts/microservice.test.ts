import { Controller, Module, UseInterceptors } from '@nestjs/common';
import type { INestMicroservice } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ClientProxyFactory, EventPattern, MessagePattern, Payload, Transport } from '@nestjs/microservices';
import type { ClientProxy, RedisOptions } from '@nestjs/microservices';
import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { Observable, Subject, lastValueFrom, tap, toArray } from 'rxjs';
import { LockContext, LockInterceptor, LockService, RedisLockModule, WithLock } from '../../../lib/index.js';
import { eventually } from '../../support/eventually.js';
import { assertNothingLeft } from '../../support/lock-application.js';
import { sharedRedisUrl } from '../../support/redis/test-redis.js';

const prefix = `test-microservice-${process.pid}`;
const ran = `${prefix}:data:ran`;
const on = (pattern: string) => `${prefix}.${pattern}`;

@Controller()
class MetersController {
  /** What the stream of readings comes from: the test says when. */
  source = new Subject<number>();

  constructor(private readonly context: LockContext) {}

  @WithLock('meter:<id>')
  @MessagePattern(on('message.above'))
  async messageAbove(@Payload('id') meter: string): Promise<string> {
    return this.note(meter);
  }

  @MessagePattern(on('message.below'))
  @WithLock('meter:<id>')
  async messageBelow(@Payload('id') meter: string): Promise<string> {
    return this.note(meter);
  }

  @WithLock('meter:<id>')
  @EventPattern(on('event.above'))
  async eventAbove(@Payload('id') meter: unknown): Promise<string> {
    return this.note(String(meter));
  }

  @EventPattern(on('event.below'))
  @WithLock('meter:<id>')
  async eventBelow(@Payload('id') meter: unknown): Promise<string> {
    return this.note(String(meter));
  }

  @MessagePattern(on('intercepted'))
  @UseInterceptors(LockInterceptor('meter:<data.id>'))
  async intercepted(@Payload('id') meter: string): Promise<string> {
    return this.note(meter);
  }

  @WithLock('stream:<id>')
  @MessagePattern(on('stream.above'))
  streamAbove(@Payload('id') meter: string): Observable<number> {
    return this.readings(meter);
  }

  @MessagePattern(on('stream.below'))
  @WithLock('stream:<id>')
  streamBelow(@Payload('id') meter: string): Observable<number> {
    return this.readings(meter);
  }

  private readings(meter: string): Observable<number> {
    const { multi } = this.context;
    return this.source.pipe(tap((value) => multi.rpush(ran, `${meter}=${value}`)));
  }

  private async note(meter: string): Promise<string> {
    const { lock, redis, multi } = this.context;
    const held = await redis.exists(`${prefix}:{${lock.resources[0]}}`);
    multi.rpush(ran, `${meter} ${held ? 'under' : 'without'} ${lock.resources[0]}`);
    return `noted ${meter}`;
  }
}

describe('a locked handler of a microservice', () => {
  let service: INestMicroservice;
  let client: ClientProxy;
  let redis: Redis;

  beforeAll(async () => {
    class AppModule {}
    Module({
      imports: [RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix })],
      controllers: [MetersController],
    })(AppModule);
    const { hostname, port } = new URL(sharedRedisUrl());
    const transport = {
      transport: Transport.REDIS,
      options: { host: hostname, port: Number(port) },
    } satisfies RedisOptions;
    service = await NestFactory.createMicroservice<RedisOptions>(AppModule, { ...transport, logger: false });
    await service.listen();
    client = ClientProxyFactory.create(transport);
    await client.connect();
    redis = new Redis(sharedRedisUrl());
    // The server does not wait for its subscriptions.
    const channels = () => redis.pubsub('CHANNELS', `${prefix}.*`) as Promise<string[]>;
    await eventually(async () => (await channels()).length === 7);
  });
  afterEach(async () => void (await redis.del(ran)));
  afterAll(async () => {
    await client.close();
    await service.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  const send = (pattern: string, id: string): Promise<unknown> =>
    lastValueFrom(client.send<unknown>(on(pattern), { id }), { defaultValue: undefined });
  const whatRan = () => redis.lrange(ran, 0, -1);
  const owner = (resource: string) => redis.get(`${prefix}:{${resource}}`);
  const acquire = (resource: string) => service.get(LockService).acquire(resource);

  describe.each(['above', 'below'] as const)('with @WithLock %s the pattern', (order) => {
    it('case 3: answers a message once, locked by what @Payload names, and has committed by then', async () => {
      expect(await send(`message.${order}`, '7')).toBe('noted 7');
      expect(await whatRan()).toEqual(['7 under meter:7']);
      expect(await owner('meter:7')).toBeNull();
    });

    it('case 3: hears an event once, locked', async () => {
      client.emit(on(`event.${order}`), { id: '8' });
      await eventually(async () => (await whatRan()).length > 0);
      expect(await whatRan()).toEqual(['8 under meter:8']);
    });

    it('case 11: is locked when code calls it', async () => {
      const { messageAbove, messageBelow } = MetersController.prototype;
      const method = order === 'above' ? messageAbove : messageBelow;
      const call = (): Promise<string> => method.call(service.get(MetersController), '9');
      expect(await call()).toBe('noted 9');
      await using _lock = await acquire('meter:9');
      await expect(call()).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
      expect(await whatRan()).toEqual(['9 under meter:9']);
    });

    it('tells the client that the lock is busy, with the code, and does not run', async () => {
      await using _lock = await acquire('meter:10');
      await expect(send(`message.${order}`, '10')).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
      expect(await whatRan()).toEqual([]);
    });

    it('case 5: holds the lock of a stream from its start to its end, and has committed by its end', async () => {
      const { controller, values, ended } = await startStream(`stream.${order}`, 'a');
      for (const value of [1, 2]) {
        controller.source.next(value);
        await eventually(() => values.length === value);
        expect(await owner('stream:a')).not.toBeNull();
        expect(await whatRan()).toEqual([]);
      }
      controller.source.next(3);
      controller.source.complete();
      expect(await ended).toEqual({ committed: ['a=1', 'a=2', 'a=3'], owner: null });
      expect(values).toEqual([1, 2, 3]);
    });

    it('case 5: frees the lock of a stream once: it stays with the one who has it next', async () => {
      const { controller, ended } = await startStream(`stream.${order}`, 'b');
      controller.source.complete();
      await using next = await acquireSoon('stream:b');
      await ended;
      expect(await send(`message.${order}`, 'later')).toBe('noted later');
      expect(await owner('stream:b')).toBe(next.token);
    });

    it('case 5: frees the lock of a stream that fails, and commits nothing', async () => {
      const { controller, values, ended } = await startStream(`stream.${order}`, 'c');
      controller.source.next(1);
      await eventually(() => values.length === 1);
      controller.source.error(new Error('broken meter'));
      await expect(ended).rejects.toMatchObject({ status: 'error' });
      expect([await owner('stream:c'), await whatRan()]).toEqual([null, []]);
    });

    it('case 5: tells the client of a stream that the lock is busy, with the code', async () => {
      await using _lock = await acquire('stream:d');
      await expect(send(`stream.${order}`, 'd')).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
    });
  });

  it('survives an event whose lock is busy, and hears the next one', async () => {
    await using _lock = await acquire('meter:11');
    client.emit(on('event.above'), { id: '11' });
    client.emit(on('event.above'), { id: '12' });
    await eventually(async () => (await whatRan()).length > 0);
    expect(await whatRan()).toEqual(['12 under meter:12']);
  });

  it('LockInterceptor locks by the data of the message, and tells the client when that is busy', async () => {
    expect(await send('intercepted', '13')).toBe('noted 13');
    expect(await whatRan()).toEqual(['13 under meter:13']);
    await using _lock = await acquire('meter:14');
    await expect(send('intercepted', '14')).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
    expect(await whatRan()).toEqual(['13 under meter:13']);
  });

  it('does not tell a client the names of the resources', async () => {
    await using _lock = await acquire('meter:secret');
    const error: unknown = await send('message.above', 'secret').catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
    expect(JSON.stringify(error)).not.toContain('secret');
  });

  /** Subscribes as a client; `ended` has what is in Redis at the moment the client sees the end. */
  async function startStream(pattern: string, id: string) {
    const controller = service.get(MetersController);
    controller.source = new Subject();
    const values: number[] = [];
    const stream = client.send<number>(on(pattern), { id }).pipe(tap((value) => values.push(value)));
    const ended = lastValueFrom(stream.pipe(toArray())).then(async () => ({
      committed: await whatRan(),
      owner: await owner(`stream:${id}`),
    }));
    ended.catch(() => undefined); // looked at later
    await eventually(() => controller.source.observed);
    expect(await owner(`stream:${id}`)).not.toBeNull();
    return { controller, values, ended };
  }

  const acquireSoon = (resource: string) => service.get(LockService).acquire(resource, { wait: 5_000 });
});
