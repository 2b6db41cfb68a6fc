import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockConfigurationError, LockUnavailableError } from '../../lib/index.js';
import type { RedisCredentials, RedisLockModuleOptions } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';

describe('a password that changes', () => {
  let server: ProvidedRedis;
  let admin: Redis;
  let port: number;
  const endings: (() => unknown)[] = [];
  beforeAll(async () => {
    server = await privateRedis();
    port = Number(new URL(server.url).port);
    admin = new Redis(server.url);
  });
  beforeEach(() => admin.acl('SETUSER', 'app', 'reset', 'on', '>old', '~*', '&*', '+@all'));
  afterEach(async () => {
    for (const end of endings.splice(0).reverse()) await end();
  });
  afterAll(async () => {
    admin?.disconnect();
    await server?.stop();
  });

  const start = async (options: RedisLockModuleOptions) => {
    const one = await startLocks({ url: server.url, commandTimeout: 1_000, ...options });
    endings.push(() => one.close());
    return one;
  };
  /** Every connection is used: scripts, commits, watch(), context.redis, and the one on which waiters are told. */
  const useAll = async ({ locks, key }: LockApplication) => {
    await locks.withLock('order', { wait: 1_000 }, async ({ multi, redis, watch }) => {
      await watch(key('n'));
      multi.set(key('n'), Number(await redis.get(key('n'))) + 1);
    });
    await locks.withLock('order', ({ multi }) => multi.incr(key('m')));
  };
  const ofApp = async () =>
    String(await admin.client('LIST'))
      .split('\n')
      .filter((line) => line.includes(' user=app ')).length;
  const rotate = async (to: string) => {
    await admin.acl('SETUSER', 'app', 'resetpass', `>${to}`);
    await admin.call('CLIENT', 'KILL', 'USER', 'app');
  };

  it('is taken from the options of a client that is lent, as they are when connections are made anew', async () => {
    const client = new Redis({ port, username: 'app', password: 'old', disconnectTimeout: 0 });
    client.on('error', () => undefined); // it is refused until its owner knows the new one
    endings.push(() => client.disconnect());
    const one = await start({ connection: client });
    await useAll(one);
    client.options.password = 'new';
    await rotate('new');
    await eventually(() =>
      useAll(one).then(
        () => true,
        () => false,
      ),
    ); // context.redis is theirs
    expect([await admin.get(one.key('n')), await ofApp()]).toEqual([await admin.get(one.key('m')), 5]);
  });

  it('is asked for before each connection, and of context.redis as well', async () => {
    let password = 'old';
    let asked = 0;
    const credentials = async (): Promise<RedisCredentials> => {
      asked += 1;
      await new Promise(setImmediate);
      return { username: 'app', password };
    };
    const one = await start({ connection: `redis://127.0.0.1:${port}`, credentials });
    await useAll(one);
    expect([asked, await ofApp()]).toEqual([5, 5]);
    password = 'new';
    await rotate('new');
    await eventually(() =>
      useAll(one).then(
        () => true,
        () => false,
      ),
    );
    await useAll(one);
    expect(asked).toBeGreaterThanOrEqual(10);
    expect(await ofApp()).toBe(5);
  });

  it('may be answered at once, and be the one of the default user', async () => {
    await admin.config('SET', 'requirepass', 'default');
    endings.push(() => admin.config('SET', 'requirepass', ''));
    const one = await startLocks({
      url: `redis://:default@127.0.0.1:${port}`,
      connection: { port },
      credentials: () => ({ password: 'default' }),
    });
    endings.push(() => one.close());
    await useAll(one);
    expect(await admin.get(one.key('n'))).toBe('1');
  });

  it.each([
    ['throws', () => Promise.reject(new Error('no token today')), /^no token today$/],
    [
      'throws at once',
      () => {
        throw new Error('no token today');
      },
      /^no token today$/,
    ],
    ['never ends', () => new Promise<never>(() => undefined), /"credentials".*within 500 ms/],
    ['answers nothing', () => undefined as unknown as RedisCredentials, /"credentials".*has to answer/],
    ['answers a wrong one', () => ({ username: 'app', password: 'wrong' }), /^WRONGPASS/],
  ] as const)(
    'that is asked of a function that %s: calls say why, and work when it has come to its senses',
    async (_how, wrong, cause) => {
      let works = false;
      const credentials = () => (works ? { username: 'app', password: 'old' } : wrong());
      const one = await start({ connection: { port }, credentials });
      const refused = await Promise.all(
        [one.locks.acquire('x'), one.locks.acquire('x', { wait: 60_000 }), one.locks.inspect('x')].map(
          (call) =>
            call.then(
              () => 'no error',
              (error: unknown) => error,
            ),
        ),
      );
      for (const error of refused) {
        expect(error).toBeInstanceOf(LockUnavailableError);
        expect(error).toMatchObject({ cause: { message: expect.stringMatching(cause) } });
      }
      works = true;
      await eventually(() =>
        useAll(one).then(
          () => true,
          () => false,
        ),
      );
    },
  );

  it('is not asked of a function where a client is lent, which is said', async () => {
    const client = new Redis({ port, lazyConnect: true });
    const options = { connection: client, credentials: () => ({ password: 'old' }) };
    await expect(startLocks({ url: server.url, ...options })).rejects.toThrow(LockConfigurationError);
    await expect(startLocks({ url: server.url, ...options })).rejects.toThrow(/"credentials"/);
  });

  it('is asked for no more, and nothing connects, when the application has closed meanwhile', async () => {
    let answer: (credentials: RedisCredentials) => void = () => undefined;
    let asked = 0;
    const credentials = () => {
      asked += 1;
      return new Promise<RedisCredentials>((resolve) => (answer = resolve));
    };
    const one = await startLocks({
      url: server.url,
      connection: { port },
      commandTimeout: 2_000,
      credentials,
    });
    const call = one.locks.acquire('x').catch((error: unknown) => error);
    await eventually(() => asked > 0);
    await one.close();
    expect(await call).toBeInstanceOf(Error);
    const before = asked;
    answer({ username: 'app', password: 'old' });
    await admin.ping();
    expect([asked, await ofApp()]).toEqual([before, 0]);
  });
});
