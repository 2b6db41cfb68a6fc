import { Inject, Injectable, Module } from '@nestjs/common';
import type { DynamicModule } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import {
  InjectLockService,
  LockConfigurationError,
  LockContext,
  LockService,
  RedisLockModule,
  WithLock,
  getLockServiceToken,
} from '../../lib/index.js';
import type { RedisLockModuleOptions, RedisLockOptionsFactory } from '../../lib/index.js';
import { elapse } from '../support/elapse.js';
import { eventually } from '../support/eventually.js';
import { assertNothingLeft, startLocks } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const prefix = `test-module-${process.pid}`;
const given = () => ({ connection: sharedRedisUrl(), keyPrefix: prefix });

@Injectable()
class Factory implements RedisLockOptionsFactory {
  createRedisLockOptions(): RedisLockModuleOptions {
    return given();
  }
}
class SettingsModule {}
Module({
  providers: [Factory, { provide: 'url', useFactory: () => sharedRedisUrl() }],
  exports: [Factory, 'url'],
})(SettingsModule);

describe('RedisLockModule', () => {
  let redis: Redis;
  beforeAll(() => {
    redis = new Redis(sharedRedisUrl());
  });
  afterAll(async () => {
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  it.each([
    ['forRoot', () => RedisLockModule.forRoot(given())],
    [
      'forRootAsync with useFactory',
      () =>
        RedisLockModule.forRootAsync({
          imports: [SettingsModule],
          inject: ['url'],
          useFactory: async (url: string) => ({ connection: url, keyPrefix: prefix }),
        }),
    ],
    ['forRootAsync with useClass', () => RedisLockModule.forRootAsync({ useClass: Factory })],
    [
      'forRootAsync with useExisting',
      () => RedisLockModule.forRootAsync({ imports: [SettingsModule], useExisting: Factory }),
    ],
  ])('by %s gives LockService and LockContext to every module', async (_how, module) => {
    @Injectable()
    class User {
      constructor(
        readonly locks: LockService,
        readonly context: LockContext,
      ) {}
    }
    class Feature {}
    Module({ providers: [User] })(Feature);
    const app = await Test.createTestingModule({ imports: [module(), Feature] }).compile();
    await app.init();
    const { locks, context } = app.get(User, { strict: false });
    await locks.withLock('used', ({ lock }) => expect(context.lock).toBe(lock));
    await app.close();
  });

  const wrong: [string, unknown][] = [
    ['ttl', 5],
    ['ttl', '1000'],
    ['wait', -1],
    ['replicas', -1],
    ['maxWaiters', -1],
    ['commandTimeout', 0],
    ['commandTimeout', Infinity],
    ['commandTimeout', 2 ** 31],
    ['credentials', { password: 'secret' }],
    ['shutdownTimeout', -1],
    ['keyPrefix', ''],
    ['keyPrefix', 'a{b}'],
    ['httpErrors', 'yes'],
    ['autoExtend', 1],
    ['maxHold', NaN],
    ['connection', 7],
    ['connection', []],
    ['conection', 'redis://localhost'],
  ];
  it.each(wrong)('names a wrong option when it is set up: %s %p', async (name, value) => {
    const options = { [name]: value } as RedisLockModuleOptions;
    expect(() => RedisLockModule.forRoot(options)).toThrow(LockConfigurationError);
    expect(() => RedisLockModule.forRoot(options)).toThrow(`"${name}"`);
    const boot = Test.createTestingModule({
      imports: [RedisLockModule.forRootAsync({ useFactory: () => options })],
    }).compile();
    await expect(boot).rejects.toThrow(`"${name}"`);
  });

  it('names the longest commandTimeout there can be', () => {
    expect(() => RedisLockModule.forRoot({ commandTimeout: 2 ** 31 })).toThrow(/2147483647/);
    expect(() => RedisLockModule.forRoot({ commandTimeout: 2 ** 31 - 1 })).not.toThrow();
  });

  it('does not show the password of a connection that is wrong', () => {
    const wrongConnection = ['redis://:secret@localhost'] as unknown as string;
    expect(() => RedisLockModule.forRoot({ connection: wrongConnection })).toThrow(/"connection"/);
    expect(() => RedisLockModule.forRoot({ connection: wrongConnection })).not.toThrow(/secret/);
  });

  it.each([
    ['alone', []],
    ['before forRoot', [RedisLockModule.forRoot(given())]],
  ])('says that its options are missing where it is imported as it is, %s', async (_, more) => {
    @Injectable()
    class User {
      constructor(readonly locks: LockService) {}
    }
    const boot = Test.createTestingModule({
      imports: [RedisLockModule, ...more],
      providers: [User],
    }).compile();
    await expect(boot).rejects.toBeInstanceOf(LockConfigurationError);
    await expect(boot).rejects.toThrow(/RedisLockModule\.forRoot\(\.\.\)/);
  });

  it('refuses options that are none', () => {
    for (const none of [null, 7, 'redis://localhost']) {
      expect(() => RedisLockModule.forRoot(none as unknown as object)).toThrow(LockConfigurationError);
      expect(() => RedisLockModule.forRootAsync(none as unknown as object)).toThrow(LockConfigurationError);
    }
    expect(() => RedisLockModule.forRoot({ name: '' })).toThrow(/"name"/);
  });

  it('refuses forRootAsync without a way to the options, or with two', () => {
    expect(() => RedisLockModule.forRootAsync({})).toThrow(LockConfigurationError);
    expect(() => RedisLockModule.forRootAsync({ useClass: Factory, useFactory: given })).toThrow(
      LockConfigurationError,
    );
  });

  describe('set up in several modules of an application', () => {
    const url = sharedRedisUrl();
    const client = new Redis(url, { lazyConnect: true });
    const retryStrategy = () => 10;
    const boot = async (...modules: readonly DynamicModule[]) => {
      const features = modules.map((module) => {
        @Injectable()
        class Feature {
          constructor(readonly locks: LockService) {}

          @WithLock('shared')
          async locked(work: () => unknown = () => undefined): Promise<unknown> {
            return work();
          }
        }
        class FeatureModule {}
        Module({ imports: [module], providers: [Feature] })(FeatureModule);
        return { FeatureModule, Feature };
      });
      const imports = features.map(({ FeatureModule }) => FeatureModule);
      const app = await Test.createTestingModule({ imports }).compile();
      await app.init();
      return { app, features: features.map(({ Feature }) => app.get(Feature, { strict: false })) };
    };
    afterAll(() => client.disconnect());

    const again = { ...given(), ttl: 700, isGlobal: false };
    const same: [string, () => DynamicModule[]][] = [
      [
        'values',
        () => [RedisLockModule.forRoot({ ...again }), RedisLockModule.forRoot({ ...again, wait: 0 })],
      ],
      ['a client', () => [1, 2].map(() => RedisLockModule.forRoot({ ...again, connection: client }))],
      [
        'nested options',
        () =>
          [1, 2].map(() => {
            const { hostname: host, port } = new URL(url);
            const connection = {
              host,
              port: Number(port),
              retryStrategy,
              password: undefined,
              tags: [Buffer.from('a')],
            };
            return RedisLockModule.forRoot({ ...again, connection });
          }),
      ],
      [
        'factories',
        () => [
          RedisLockModule.forRootAsync({ useFactory: async () => given() }),
          RedisLockModule.forRootAsync({ useClass: Factory, isGlobal: false }),
        ],
      ],
    ];
    it.each(same)('with the same options, it has one service: %s', async (_how, modules) => {
      const { app, features } = await boot(...modules());
      const [one, other] = features;
      expect(one?.locks).toBe(other?.locks);
      // One scope as well: neither is refused by the lock of its own caller.
      expect(await one?.locked(() => other?.locked(() => 'joined'))).toBe('joined');
      await app.close();
      await expect(other?.locked()).rejects.toMatchObject({ reason: 'shutdown' });
    });

    const different: [string, RegExp, RedisLockModuleOptions, RedisLockModuleOptions][] = [
      ['ttl', /"ttl" is 1000 and 2000[.]/, { ttl: 1_000 }, { ttl: 2_000 }],
      ['a default', /"wait" is 0 and 5[.]/, {}, { wait: 5 }],
      [
        'several',
        /"keyPrefix", "autoExtend" is true and false[.]/,
        {},
        { keyPrefix: 'b', autoExtend: false },
      ],
      ['connection', /"connection"[.]/, {}, { connection: 'redis://:secret@localhost' }],
      [
        'clients',
        /"connection"[.]/,
        { connection: client },
        { connection: new Redis({ lazyConnect: true }) },
      ],
      ['nodes', /"connection"[.]/, { connection: { nodes: [{ port: 1 }] } }, { connection: { nodes: [] } }],
      [
        'functions',
        /"connection"[.].* functions .*same object/,
        { connection: { retryStrategy } },
        { connection: { retryStrategy: () => 10 } },
      ],
    ];
    it.each(different)(
      'with different options, it does not boot, and says what differs: %s',
      async (...row) => {
        const [, says, first, second] = row;
        const [a, b] = [first, second].map((options) => ({ ...given(), ...options }));
        for (const modules of [
          () => [RedisLockModule.forRoot(a), RedisLockModule.forRoot(b)],
          () => [
            RedisLockModule.forRoot(a),
            RedisLockModule.forRootAsync({ useFactory: async () => b as object }),
          ],
        ]) {
          const booting = boot(...modules());
          await expect(booting).rejects.toBeInstanceOf(LockConfigurationError);
          const { message } = (await booting.catch((error: unknown) => error)) as Error;
          expect(message).toContain('set up twice without a name');
          expect(message.split('different options')[1]).toMatch(says);
          expect(message).not.toContain('secret');
        }
      },
    );

    it('names the name that is used twice', async () => {
      const booting = boot(
        RedisLockModule.forRoot(given()),
        RedisLockModule.forRoot({ ...given(), name: 'a' }),
        RedisLockModule.forRoot({ ...given(), name: 'a', ttl: 20 }),
      );
      await expect(booting).rejects.toThrow(/twice with the name "a", .*"ttl" is 10000 and 20/);
    });
  });

  it('gives a named instance by its name only', async () => {
    @Injectable()
    class User {
      constructor(
        @InjectLockService('a') readonly a: LockService,
        @InjectLockService('b') readonly b: LockService,
        @Inject(getLockServiceToken('b')) readonly alsoB: LockService,
      ) {}
    }
    const app = await Test.createTestingModule({
      imports: [
        RedisLockModule.forRoot({ ...given(), name: 'a' }),
        RedisLockModule.forRoot({ ...given(), name: 'b' }),
      ],
      providers: [User],
    }).compile();
    await app.init();
    const { a, b, alsoB } = app.get(User);
    expect(a).not.toBe(b);
    expect(b).toBe(alsoB);
    expect(() => app.get(LockService, { strict: false })).toThrow();
    await using _lock = await a.acquire('shared');
    expect(await b.tryAcquire('shared')).toBeNull();
    await _lock.release();
    await app.close();
  });

  it('case 33: opens two connections, however often it is used, and closes both', async () => {
    const name = `locks-${process.pid}`;
    const connections = async () =>
      String(await redis.client('LIST'))
        .split('\n')
        .filter((line) => line.includes(` name=${name} `)).length;
    const url = new URL(sharedRedisUrl());
    const one = await startLocks({
      connection: { host: url.hostname, port: Number(url.port), connectionName: name },
    });
    for (let i = 0; i < 5; i += 1) {
      await one.locks.withLock('used', ({ multi }) => multi.set(one.key('used'), i));
    }
    expect(await connections()).toBe(2);
    await one.close();
    await eventually(async () => (await connections()) === 0);
  });

  it('borrows a client: carries its prefix and database over, and leaves it open', async () => {
    const client = new Redis(sharedRedisUrl(), { db: 3, keyPrefix: 'app:' });
    const one = await startLocks({ connection: client });
    await one.locks.withLock('borrowed', async ({ multi, redis: shared, lock }) => {
      expect(shared).toBe(client);
      expect(await client.get(`${one.prefix}:{borrowed}`)).toBe(lock.token);
      multi.set(one.key('borrowed'), 1);
    });
    expect(await client.get(one.key('borrowed'))).toBe('1');
    await one.close();
    expect(client.status).toBe('ready');
    expect(await redis.keys(`*${one.prefix}*`)).toEqual([]); // nothing in database 0
    const inDatabase3 = new Redis(sharedRedisUrl(), { db: 3 });
    expect(await inDatabase3.get(`app:${one.key('borrowed')}`)).toBe('1');
    await assertNothingLeft(inDatabase3, `app:${one.prefix}`);
    inDatabase3.disconnect();
    client.disconnect();
  });

  it.each(['app:', '{app}:', 'a{b}c:'])(
    'is told of hand-overs through a client with the prefix %s',
    async (keyPrefix) => {
      const clients = [0, 1].map(() => new Redis(sharedRedisUrl(), { keyPrefix }));
      const [one, other] = await Promise.all(
        clients.map((connection) => startLocks({ connection, keyPrefix: 'told' })),
      );
      const held = await one?.locks.acquire('prefixed');
      const waiting = other?.locks.acquire('prefixed', { wait: 5_000 });
      await eventually(async () => (await redis.zcard(`${keyPrefix}told:queue:{prefixed}`)) === 1);
      const released = performance.now();
      await held?.release();
      await (await waiting)?.release();
      expect(performance.now() - released).toBeLessThan(1_400); // less than a grant that nobody hears of
      for (const each of [one, other]) {
        await each?.app.close();
        each?.redis.disconnect();
      }
      for (const client of clients) client.disconnect();
      await assertNothingLeft(redis, `${keyPrefix}told`);
    },
  );

  it('borrows a client that has selected another database since', async () => {
    const client = new Redis(sharedRedisUrl());
    await client.select(5);
    const one = await startLocks({ connection: client });
    await one.locks.withLock('selected', ({ multi }) => multi.set(one.key('selected'), 1));
    expect(await client.get(one.key('selected'))).toBe('1');
    await one.close();
    await assertNothingLeft(client, one.prefix);
    client.disconnect();
  });

  it('does not depend on what users do on the client they share with it', async () => {
    const client = new Redis(sharedRedisUrl());
    const one = await startLocks({ connection: client, ttl: 300 });
    const blocked = client.blpop(one.key('never'), 0).catch(() => undefined);
    const lock = await one.locks.acquire('independent');
    const start = performance.now();
    await elapse(400, start);
    expect(lock.held).toBe(true);
    await one.close();
    client.disconnect();
    await blocked;
  });

  it('leaves nothing open when the application fails to start', async () => {
    const name = `failed-${process.pid}`;
    const url = new URL(sharedRedisUrl());
    const boot = startLocks(
      { connection: { host: url.hostname, port: Number(url.port), connectionName: name } },
      {
        providers: [
          {
            provide: 'broken',
            useFactory: () => {
              throw new Error('broken');
            },
          },
        ],
      },
    );
    await expect(boot).rejects.toThrow('broken');
    expect(String(await redis.client('LIST'))).not.toContain(name);
  });

  it('case 9: refuses a client that is none of ioredis, or cannot run commands', async () => {
    const foreign = { connect: () => undefined, sendCommand: () => undefined } as unknown as Redis;
    const boot = (connection: Redis) =>
      Test.createTestingModule({ imports: [RedisLockModule.forRoot({ connection })] }).compile();
    await expect(boot(foreign)).rejects.toThrow(LockConfigurationError);

    const subscriber = new Redis(sharedRedisUrl(), { protocol: 2 });
    await subscriber.subscribe('channel');
    await expect(boot(subscriber)).rejects.toThrow(/subscriber mode/);
    subscriber.disconnect();
  });

  it('case 31: boots without Redis, and closes without it', async () => {
    const one = await startLocks({ connection: 'redis://127.0.0.1:1', commandTimeout: 100 });
    await expect(one.locks.acquire('x')).rejects.toMatchObject({ code: 'LOCK_UNAVAILABLE' });
    await one.close();
  });

  it('case 32: lets work under a lock end before it closes the connection, and refuses new locks', async () => {
    const one = await startLocks();
    let finish = () => undefined as void;
    const finished = new Promise<void>((resolve) => (finish = resolve));
    let runs = 0;
    const work = one.locks.withLock('closing', async ({ multi }) => {
      runs += 1;
      await finished;
      multi.set(one.key('closing'), 'done');
      return 'done';
    });
    await eventually(() => runs === 1);
    const closed = one.app.close();
    await eventually(() =>
      one.locks.tryAcquire('other').then(
        async (lock) => {
          await lock?.release();
          return false;
        },
        (error: { reason: string }) => error.reason === 'shutdown',
      ),
    );
    finish();
    expect(await work).toBe('done');
    await closed;
    expect(await one.redis.get(one.key('closing'))).toBe('done');
    await one.close();
  });

  it('releases locks that are still held when it is closed', async () => {
    const one = await startLocks();
    const lock = await one.locks.acquire('left');
    await one.app.close();
    expect(await one.redis.exists(`${one.prefix}:{left}`)).toBe(0);
    expect(lock.held).toBe(false);
    await one.close();
  });

  it('twice in one process keeps to itself', async () => {
    const [a, b] = [await startLocks(), await startLocks()];
    await a.locks.withLock('x', async ({ lock }) => {
      expect(a.context.lock).toBe(lock);
      expect(() => b.context.lock).toThrow(/outside/);
      expect(await b.locks.withLock('x', () => 'own prefix')).toBe('own prefix');
    });
    await a.close();
    expect(await b.locks.withLock('x', () => 'still there')).toBe('still there');
    await b.close();
  });

  it('can be set up without any option', async () => {
    expect(RedisLockModule.forRoot().global).toBe(true);
    expect(RedisLockModule.forRoot({ isGlobal: false }).global).toBe(false);
  });
});
