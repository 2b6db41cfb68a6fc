import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { linesOfReadme, rulesOfReadme } from '../support/rules-of-readme.js';
import { privateRedis } from '../support/redis/test-redis.js';

/** The oldest Redis that locks are meant for. */
const OLDEST = [6, 2];

describe('a user of Redis with the rights that the README names', () => {
  let server: ProvidedRedis;
  let admin: Redis;
  let one: LockApplication;
  let other: LockApplication;
  /** Commands that Redis ran for that user, by scripts too, with their arguments. */
  const seen: string[][] = [];

  beforeAll(async () => {
    server = await privateRedis();
    admin = new Redis(server.url);
    // As redis-cli does with what is pasted into it: each line is a command.
    for (const line of linesOfReadme()) await admin.call(...(line.split(' ') as [string, ...string[]]));
    await admin.acl('SETUSER', 'locks', '~data:*', '+get', '+set', '+incr'); // what the application does itself
    const monitor = await admin.monitor();
    monitor.on('monitor', (_time: string, args: string[]) => void seen.push(args));
    const connection = { port: Number(new URL(server.url).port), username: 'locks', password: 'secret' };
    one = await startLocks({ url: server.url, connection, keyPrefix: 'lock', ttl: 300 });
    other = await startLocks({ url: server.url, connection, keyPrefix: 'lock', ttl: 300 });
    await useEverything();
    await admin.echo('the end');
    await eventually(() => seen.some(([, text]) => text === 'the end'));
    monitor.disconnect();
  });
  afterAll(async () => {
    await one?.app.close();
    await other?.app.close();
    one?.redis.disconnect();
    other?.redis.disconnect();
    admin?.disconnect();
    await server?.stop();
  });

  async function useEverything(): Promise<void> {
    const held = await one.locks.acquire(['a', 'b']);
    await held.extend(500);
    const waiting = [one, other, other].map(({ locks }) =>
      locks.withLock('a', { wait: 5_000 }, ({ multi }) => multi.incr('data:n')),
    );
    const impatient = other.locks.acquire('a', { wait: 20 }).catch(() => undefined);
    await impatient;
    await eventually(async () => (await admin.zcard('lock:queue:{a}')) === 3);
    // Its lease was renewed: those who waited for the end that they knew of have asked again.
    await eventually(() => seen.some(([command = '']) => command.toLowerCase() === 'zscore'));
    await held.release();
    await Promise.all(waiting);
    await one.locks.withLock('c', { minHold: 30 }, async ({ multi, watch, redis, commit }) => {
      await watch('data:n');
      multi.set('data:copy', (await redis.get('data:n')) ?? '');
      await commit();
      await watch('data:n');
    });
    const taken = await one.locks.acquire('d');
    expect(await other.locks.inspect('d')).not.toBeNull();
    for await (const state of other.locks.list()) expect(state.waiters).toBe(0);
    expect(await other.locks.forceRelease('d')).toBe(true);
    await taken.release();
    // So many clients have committed under it that the oldest commits are forgotten.
    const commits = Array.from({ length: 300 }, (_, i) => [`c:client${i}:0`, `${i + 1}=client${i}:1:300#1`]);
    await admin.hset('lock:fence:{many}', 'last', 1, 'since', 1, ...commits.flat());
    await admin.pexpire('lock:fence:{many}', 60_000);
    await (await one.locks.acquire('many')).release();
    const lost = one.locks.withLock('e', { retries: 0 }, async ({ multi }) => {
      multi.incr('data:n');
      await admin.del('lock:{e}');
    });
    await expect(lost).rejects.toMatchObject({ code: 'LOCK_LOST' });
  }

  it('can do everything that locks do', async () => {
    expect(await admin.mget('data:n', 'data:copy')).toEqual(['3', '3']);
  });

  it('has no right that locks do not use', () => {
    const allowed = rulesOfReadme()
      .filter((rule) => rule.startsWith('+'))
      .map((rule) => rule.slice(1));
    const used = new Set(
      seen.flatMap(([command = '', first = '']) =>
        [command, `${command}|${first}`].map((name) => name.toLowerCase()),
      ),
    );
    // SCAN is for list(), WAIT for `replicas`; connections begin with what the server does not show.
    const elsewhere = ['wait', 'hello', 'auth', 'client|setinfo', 'client|setname', 'select', 'discard'];
    expect(allowed.filter((right) => !used.has(right) && !elsewhere.includes(right))).toEqual([]);
  });

  it('uses no command, and no option, that Redis 6.2 did not have', async () => {
    const names = [...new Set(seen.map(([command = '']) => command.toLowerCase()))];
    expect(names).toEqual(expect.arrayContaining(['evalsha', 'watch', 'publish', 'scan', 'zadd']));
    // On Redis 6.2 itself, which cannot say since when it has a command, all of them have just run.
    if (/redis_version:6\.2\./.test(await admin.info('server'))) return;
    const docs = (await admin.call('COMMAND', 'DOCS', ...names)) as unknown[];
    const isTooNew = (version: string) => {
      const [major = 0, minor = 0] = version.split('.').map(Number);
      return major > (OLDEST[0] ?? 0) || (major === OLDEST[0] && minor > (OLDEST[1] ?? 0));
    };
    const tooNew: string[] = [];
    for (let i = 0; i < docs.length; i += 2) {
      const name = String(docs[i]);
      const about = asMap(docs[i + 1]);
      if (isTooNew(String(about.get('since')))) tooNew.push(name);
      for (const token of newTokens(about.get('arguments'), isTooNew)) {
        const uses = seen.some(
          ([command = '', ...args]) =>
            command.toLowerCase() === name && args.some((arg) => arg.toUpperCase() === token),
        );
        if (uses) tooNew.push(`${name} ${token}`);
      }
    }
    expect(tooNew).toEqual([]);
  });
});

function asMap(reply: unknown): Map<string, unknown> {
  const entries = reply as unknown[];
  const map = new Map<string, unknown>();
  for (let i = 0; i + 1 < entries.length; i += 2) map.set(String(entries[i]), entries[i + 1]);
  return map;
}

/** Options of a command that came later than the oldest Redis. */
function newTokens(args: unknown, isTooNew: (version: string) => boolean): string[] {
  if (!Array.isArray(args)) return [];
  return args.flatMap((arg) => {
    const about = asMap(arg);
    const token = about.get('token');
    const since = about.get('since');
    const own = token !== undefined && since !== undefined && isTooNew(String(since)) ? [String(token)] : [];
    return [...own, ...newTokens(about.get('arguments'), isTooNew)];
  });
}
