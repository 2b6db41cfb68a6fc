import { readFileSync } from 'node:fs';
import { describe, expect, it } from '@jest/globals';
import { RedisLockModule } from '../../lib/index.js';
import { checkWithLockOptions, resolveModuleOptions } from '../../lib/redis-lock.options.js';

describe('options', () => {
  const DEFAULTS = {
    connection: 'redis://localhost:6379',
    keyPrefix: 'lock',
    ttl: 10_000,
    wait: 0,
    autoExtend: true,
    maxHold: Infinity,
    maxWaiters: Infinity,
    replicas: 0,
    commandTimeout: 2_000,
    shutdownTimeout: 10_000,
    httpErrors: true,
  };

  it('that are not given have the defaults of the README', () => {
    expect(resolveModuleOptions({})).toEqual(DEFAULTS);
    const readme = readFileSync('README.md', 'utf8');
    const rows = [...readme.matchAll(/^\| `(\w+)` +\| (\S.*?) +\|/gm)].map(([, name, value]) => [
      name,
      value,
    ]);
    const said = Object.fromEntries(rows) as Record<string, string>;
    for (const [name, value] of Object.entries(DEFAULTS)) {
      const text = said[name]?.replace(/[`']|(?<=\d) (?=\d)/g, '');
      expect([name, text]).toEqual([name, String(value)]);
    }
  });

  it('that are left undefined have their defaults', () => {
    const given = { ttl: undefined, wait: undefined, connection: undefined } as never;
    expect(resolveModuleOptions(given)).toEqual(DEFAULTS);
  });

  it.each([
    ['minHold', -1],
    ['minHold', Infinity],
    ['minHold', Number.NaN],
    ['retries', 0.5],
    ['retries', Infinity],
    ['retries', -1],
    ['onLost', 'ignore'],
    ['transaction', 1],
    ['maxHold', -1],
    ['wait', '5'],
    ['ttl', 9],
    ['ttl', 10.5],
    ['slot', '{a}'],
    ['signal', {}],
  ])('of a call are refused by name when they are wrong: %s %p', (name, value) => {
    expect(() => checkWithLockOptions({ [name]: value })).toThrow(
      new RegExp(`^Option "${name}" of withLock`),
    );
  });

  it.each([
    ['replicas', 0.5],
    ['replicas', Infinity],
    ['replicas', -1],
    ['maxWaiters', -1],
    ['commandTimeout', 0],
    ['commandTimeout', Infinity],
    ['shutdownTimeout', Infinity],
    ['httpErrors', 'no'],
    ['keyPrefix', ''],
  ])('of the module are refused by name when they are wrong: %s %p', (name, value) => {
    expect(() => RedisLockModule.forRoot({ [name]: value })).toThrow(
      new RegExp(`^Option "${name}" of RedisLockModule`),
    );
  });
});
