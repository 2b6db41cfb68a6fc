import { inspect } from 'node:util';
import { Test } from '@nestjs/testing';
import { afterEach, describe, expect, it } from '@jest/globals';
import { Cluster, Redis } from 'ioredis';
import { LockConfigurationError, RedisLockModule } from '../../lib/index.js';
import type { RedisLockModuleOptions } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import { privateRedis, sharedRedisUrl } from '../support/redis/test-redis.js';

const SECRET = 'not-to-be-seen';

/** By forRoot at once, and by forRootAsync at boot: what was thrown, all of it as a log shows it. */
async function refusalOf(connection: unknown): Promise<string> {
  const options = { connection } as RedisLockModuleOptions;
  const thrown: unknown[] = [];
  try {
    RedisLockModule.forRoot(options);
  } catch (error) {
    thrown.push(error);
  }
  await Test.createTestingModule({ imports: [RedisLockModule.forRootAsync({ useFactory: () => options })] })
    .compile()
    .catch((error: unknown) => thrown.push(error));
  expect(thrown).toEqual([expect.any(LockConfigurationError), expect.any(LockConfigurationError)]);
  return inspect(thrown, { depth: 10, showHidden: true });
}

describe('where Redis is', () => {
  it.each([
    ['valkey://app:@@@@@localhost'],
    ['redis+tls://app:@@@@@localhost'],
    ['http://app:@@@@@localhost'],
    ['REDISS://app:@@@@@localhost'],
    [' redis://app:@@@@@localhost'],
    ['"redis://app:@@@@@localhost"'],
    ['redis://app:@@@@/pass@localhost'],
    ['redis://app:7/@@@@@localhost'],
    ['redis://app:7#@@@@@localhost'],
    ['redis://app:7?@@@@@localhost'],
    ['redis://app:%@@@@@localhost'],
    ['redis://app:@@@@@localhost/orders'],
    ['app:@@@@@localhost'],
    ['//app:@@@@@localhost'],
    [''],
    [{ host: 'redis://app:@@@@@localhost' }],
    [{ path: 'redis://app:@@@@@localhost' }],
    [{ nodes: ['http://app:@@@@@localhost'] }],
    [{ nodes: [{ host: 'app:@@@@@localhost' }] }],
    [{ sentinels: [{ host: 'redis://app:@@@@@localhost' }], name: 'locks' }],
  ])('is refused, and nothing of it shown: %p', async (connection) => {
    const given = JSON.parse(JSON.stringify(connection).replaceAll('@@@@', SECRET)) as unknown;
    const shown = await refusalOf(given);
    expect(shown).toContain('"connection"');
    expect(shown).not.toContain(SECRET);
  });

  it.each(['options', 'the answer of useFactory'])('is not shown when it is given as %s', async (place) => {
    const url = `redis://:${SECRET}@localhost` as unknown as RedisLockModuleOptions;
    const thrown =
      place === 'options'
        ? await Promise.resolve()
            .then(() => RedisLockModule.forRoot(url))
            .catch((error: unknown) => error)
        : await Test.createTestingModule({
            imports: [RedisLockModule.forRootAsync({ useFactory: () => url })],
          })
            .compile()
            .catch((error: unknown) => error);
    expect(thrown).toBeInstanceOf(LockConfigurationError);
    expect(inspect(thrown, { depth: 10 })).not.toContain(SECRET);
  });

  it.each(['redis://', 'redis://app:p%40ss@', 'rediss://'])('may be a URL: %s', (start) => {
    for (const end of [
      'localhost',
      'localhost:7000',
      'localhost:7000/3',
      '[::1]:7000/',
      'localhost?family=6',
    ])
      expect(() => RedisLockModule.forRoot({ connection: `${start}${end}` })).not.toThrow();
  });

  it('may be the path of a socket', async () => {
    const path = `/tmp/locks-${process.pid}.sock`;
    const server = await privateRedis(['--unixsocket', path]);
    const one = await startLocks({ url: server.url, connection: path });
    await one.locks.withLock('x', ({ multi }) => multi.set(one.key('n'), 1));
    expect(await one.redis.get(one.key('n'))).toBe('1');
    await one.close();
    await server.stop();
  });
});

describe('a client that reads from replicas', () => {
  const clients: (Redis | Cluster)[] = [];
  afterEach(() => {
    for (const client of clients.splice(0)) client.disconnect();
  });
  const nodes = [{ host: '127.0.0.1', port: 1 }];
  const lazy = { lazyConnect: true };
  const wrong: [string, () => unknown][] = [
    ["scaleReads: 'slave'", () => new Cluster(nodes, { ...lazy, scaleReads: 'slave' })],
    ["scaleReads: 'all'", () => ({ nodes, options: { scaleReads: 'all' } })],
    [
      'scaleReads: a function',
      () => new Cluster(nodes, { ...lazy, scaleReads: (found: Redis[]) => found[0] as Redis }),
    ],
    ["role: 'slave'", () => new Redis({ ...lazy, sentinels: nodes, name: 'locks', role: 'slave' })],
    ["role: 'slave'", () => ({ sentinels: nodes, name: 'locks', role: 'slave' })],
    ['readOnly: true', () => new Redis({ ...lazy, readOnly: true })],
  ];
  it.each(wrong)('is refused by name: %s', async (name, make) => {
    const connection = make();
    if (connection instanceof Redis || connection instanceof Cluster) clients.push(connection);
    const boot = startLocks({ connection: connection as Redis });
    await expect(boot).rejects.toThrow(LockConfigurationError);
    await expect(boot).rejects.toThrow(name);
  });
});

describe('a client that is lent', () => {
  it('selects another database later, and locks and commits stay in the one of the start', async () => {
    const client = new Redis(sharedRedisUrl(), { db: 1 });
    await client.select(2);
    const one = await startLocks({ connection: client });
    const work = () =>
      one.locks.withLock('order', { wait: 2_000 }, async ({ multi, watch }) => {
        await watch(one.key('watched'));
        multi.incr(one.key('n'));
      });
    await work();
    await client.select(3);
    const second = new Redis(sharedRedisUrl(), { db: 2 });
    const connected = async () => String(await second.client('LIST')).split('\n');
    const locks = (await connected()).filter((line) =>
      / db=2 .* cmd=(eval|evalsha|exec|publish) /.test(line),
    );
    for (const line of locks) await second.call('CLIENT', 'KILL', 'ID', /id=(\d+)/.exec(line)?.[1] ?? '');
    await eventually(() =>
      work().then(
        () => true,
        () => false,
      ),
    );
    expect(await second.get(one.key('n'))).toBe('2');
    const third = new Redis(sharedRedisUrl(), { db: 3 });
    expect(await third.keys(`*${one.prefix}*`)).toEqual([]);
    await second.del(...(await second.keys(`*${one.prefix}*`)));
    await one.close();
    for (const each of [client, second, third]) each.disconnect();
  });
});

describe('options that let commands fail while there is no connection', () => {
  it('let the first command of context.redis wait for it, and no later one', async () => {
    const server = await privateRedis();
    const connection = { port: Number(new URL(server.url).port), enableOfflineQueue: false };
    const one = await startLocks({ url: server.url, connection });
    const read = await one.locks.withLock('x', async ({ redis }) => redis.get(one.key('n')));
    expect(read).toBeNull();
    await one.locks.withLock('x', async ({ redis }) => {
      redis.disconnect(true);
      await expect(redis.get(one.key('n'))).rejects.toThrow(/enableOfflineQueue/);
    });
    await one.close();
    await server.stop();
  });
});
