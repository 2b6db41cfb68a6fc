import { inspect } from 'node:util';
import { Test } from '@nestjs/testing';
import { describe, expect, it } from '@jest/globals';
import { LockConfigurationError, RedisLockModule } from '../../lib/index.js';
import type { RedisLockModuleOptions } from '../../lib/index.js';
import { startLocks } from '../support/lock-application.js';
import { privateRedis } from '../support/redis/test-redis.js';

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
