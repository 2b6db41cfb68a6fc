import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { fakeAptGet } from '../support/redis/fake-apt-get.js';
import { findOnPath } from '../support/redis/find-on-path.js';
import { thisMachine } from '../support/redis/machine.js';
import {
  provideRedis,
  type ProvidedRedis,
  type ProvideRedisOptions,
} from '../support/redis/provide-redis.js';
import {
  redisOfAnotherProcess,
  type RedisOfAnotherProcess,
} from '../support/redis/redis-of-another-process.js';
import { containerRuntimeAnswers } from '../support/redis/redis-container.js';
import { privateRedis, sharedRedisUrl } from '../support/redis/test-redis.js';

const DEBIAN = 'ID=debian\n';
const noContainers = { containerRuntimeAnswers: () => Promise.resolve(false) };
const serverBinary = findOnPath(['redis-server', 'valkey-server'], process.env);

const cleanUps: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp();
});

describe('with REDIS_URL', () => {
  it('uses the server named by REDIS_URL and leaves it running', async () => {
    const provided = await provide({ environment: { REDIS_URL: sharedRedisUrl(), PATH: process.env.PATH } });

    expect(provided).toMatchObject({ source: 'url', url: sharedRedisUrl() });
    expect(provided.pid).toBeUndefined();
    await provided.stop();
    expect(await ping(sharedRedisUrl())).toBe('PONG');
  });

  it('a REDIS_URL that does not answer is an error that names it and hides its password', async () => {
    const url = `redis://someone:s3cret@127.0.0.1:${await thisMachine().freePort()}/3?password=s3cret`;
    const message = await refusal({ environment: { REDIS_URL: url }, within: 200 });

    expect(message).toMatch(/^REDIS_URL \(redis:\/\/127\.0\.0\.1:\d+\/3\) .*ECONNREFUSED/);
    expect(message).not.toContain('s3cret');
  });

  it('case 35: a REDIS_URL whose server accepts but does not answer PING is not ready, and an error in the end', async () => {
    const url = `redis://127.0.0.1:${await silentPort()}`;

    expect(await refusal({ environment: { REDIS_URL: url }, within: 200 })).toMatch(
      /REDIS_URL.*no answer for/,
    );
  });

  it('a REDIS_URL whose password the server refuses is an error at once that hides the password', async () => {
    const server = await privateOrNothing();
    if (!server) return;
    await command(server.url, (redis) => redis.config('SET', 'requirepass', 'right'));
    const withPassword = (password: string) => server.url.replace('redis://', `redis://:${password}@`);

    const started = performance.now();
    const error = await refusal({ environment: { REDIS_URL: withPassword('s3cret') } });
    expect(performance.now() - started).toBeLessThan(5_000);
    expect(error).toContain('WRONGPASS');
    expect(error).not.toContain('s3cret');

    const provided = await provide({ environment: { REDIS_URL: withPassword('right') } });
    expect(await ping(provided.url)).toBe('PONG');
  });

  it.each([
    ['http://:s3cret@host', /must begin with redis:\/\/ or rediss:\/\//],
    ['s3cret', /is not a URL/],
  ])('a REDIS_URL of another kind is refused without being shown', async (url, reason) => {
    const message = await refusal({ environment: { REDIS_URL: url } });

    expect(message).toMatch(reason);
    expect(message).not.toContain('s3cret');
  });

  it('leaves REDIS_URL alone for a caller who wants a server of its own', async () => {
    if (!binaryOrNothing()) return;
    const environment = { ...process.env, REDIS_URL: sharedRedisUrl() };

    expect(await provide({ environment, private: true })).toMatchObject({ source: 'binary' });
  });
});

describe('with a binary on PATH', () => {
  it('starts redis-server from PATH and ends it with stop()', async () => {
    const binary = binaryOrNothing();
    if (!binary) return;
    const provided = await provide({ environment: { PATH: folderWith({ 'redis-server': binary }) } });

    expect(provided.source).toBe('binary');
    expect(provided.url).toMatch(/^redis:\/\/127\.0\.0\.1:\d+$/);
    expect(await command(provided.url, (redis) => redis.config('GET', 'save'))).toEqual(['save', '']);
    expect(isAlive(provided.pid)).toBe(true);

    await provided.stop();
    expect(isAlive(provided.pid)).toBe(false);
    await provided.stop();
  });

  it('takes valkey-server when there is no redis-server', async () => {
    const binary = binaryOrNothing();
    if (!binary) return;
    const PATH = folderWith({ 'valkey-server': binary });
    const provided = await provide({ environment: { PATH } });

    const { executable } = await serverInfo(provided);
    expect(executable).toBe(join(PATH, 'valkey-server'));
  });

  it('takes redis-server when there are both', async () => {
    const binary = binaryOrNothing();
    if (!binary) return;
    const [valkey, redis] = [folderWith({ 'valkey-server': binary }), folderWith({ 'redis-server': binary })];
    const provided = await provide({ environment: { PATH: `${valkey}:${redis}` } });

    const { executable } = await serverInfo(provided);
    expect(executable).toBe(join(redis, 'redis-server'));
  });

  it('hands further arguments to the server', async () => {
    const server = await privateOrNothing(['--maxmemory-policy', 'allkeys-lru']);
    if (!server) return;

    const policy = await command(server.url, (redis) => redis.config('GET', 'maxmemory-policy'));
    expect(policy).toEqual(['maxmemory-policy', 'allkeys-lru']);
  });

  it('reports the output of a server that ends at its start', async () => {
    if (!binaryOrNothing()) return;

    expect(await refusal({ private: true, arguments: ['--no-such-setting', '1'] })).toMatch(
      /ended at its start.*no-such-setting/s,
    );
  });

  it('takes another port when the first is taken by the time the server binds it', async () => {
    if (!binaryOrNothing()) return;
    // One that answers PING, too: it must not be mistaken for the server that was started.
    const other = await provide({ private: true });
    const free = await thisMachine().freePort();
    const ports = [Number(new URL(other.url).port), free];
    const freePort = () => Promise.resolve(ports.shift() ?? 0);

    const provided = await provide({ private: true, machine: { freePort } });
    expect(provided.url).toBe(`redis://127.0.0.1:${free}`);
    expect(ports).toEqual([]);
  });

  it('a server whose parent was killed with SIGKILL ends too', async () => {
    if (!binaryOrNothing()) return;
    const { parent, pid } = await ofAnotherProcess('stays alive');
    expect(isAlive(pid)).toBe(true);

    parent.kill('SIGKILL');
    await until(() => !isAlive(pid));
  });

  it('a stopped server whose parent was killed with SIGKILL ends too', async () => {
    if (!binaryOrNothing()) return;
    const { parent, pid } = await ofAnotherProcess('stays alive');
    process.kill(pid, 'SIGSTOP');

    parent.kill('SIGKILL');
    await until(() => !isAlive(pid));
  });

  it('a process that forgets stop() can exit, and its server ends', async () => {
    if (!binaryOrNothing()) return;
    const { exited, pid } = await ofAnotherProcess('forgets stop()');

    expect(await exited).toEqual([0, null]);
    await until(() => !isAlive(pid));
  });
});

describe('without a binary on PATH', () => {
  it('asks for a container, and without a runtime steps aside with a message', async () => {
    if (await containerRuntimeAnswers()) return stepAside('a container runtime answers here');
    const said: string[] = [];
    const environment = { PATH: emptyFolder() };
    const started = performance.now();

    await refusal({ environment, machine: { osRelease: '' }, say: (line) => said.push(line) });
    expect(said).toContainEqual(expect.stringContaining('no container runtime answers'));
    expect(performance.now() - started).toBeLessThan(6_000);
  });

  it('runs a container where a runtime answers, and removes it with stop()', async () => {
    if (!(await containerRuntimeAnswers())) return stepAside('no container runtime answers here');
    const provided = await provide({ environment: { PATH: emptyFolder() } });

    expect(provided.source).toBe('container');
    expect(await ping(provided.url)).toBe('PONG');
    await provided.stop();
    await expect(ping(provided.url)).rejects.toThrow();
  }, 120_000);

  it('as root on Debian installs the package after saying so, and starts its server', async () => {
    const binary = binaryOrNothing();
    if (!binary) return;
    const PATH = emptyFolder();
    const apt = fakeAptGet(PATH, `case "$*" in *install*) /bin/ln -s ${binary} ${PATH}/redis-server;; esac`);
    const said: string[] = [];
    const provided = await provide({
      environment: { PATH },
      machine: { ...noContainers, uid: 0, osRelease: DEBIAN },
      say: (line) => said.push(`${line} (apt-get calls so far: ${apt.calls().length})`),
    });

    expect(said).toContainEqual(expect.stringMatching(/installing.*redis-server.*calls so far: 0/));
    expect(apt.calls()).toEqual([
      'noninteractive update',
      expect.stringMatching(
        /^noninteractive .*DPkg::Lock::Timeout=120 .*install -y --no-install-recommends redis-server$/,
      ),
    ]);
    expect(provided.source).toBe('installed');
    expect(await ping(provided.url)).toBe('PONG');
    await provided.stop();
    expect(isAlive(provided.pid)).toBe(false);
  });

  it('while it installs, the commands that would start a service do nothing', async () => {
    const PATH = emptyFolder();
    // dpkg looks them up in the first folder of DPkg::Path.
    fakeAptGet(
      PATH,
      `case "$*" in *install*)
        for word; do case $word in *DPkg::Path=*) path=\${word#*DPkg::Path=}; first=\${path%%:*};; esac; done
        for name in invoke-rc.d deb-systemd-invoke; do "$first/$name" start redis-server && echo "quiet: $name"; done
        exit 7;;
      esac`,
    );
    const message = await refusal({
      environment: { PATH },
      machine: { ...noContainers, uid: 0, osRelease: DEBIAN },
    });

    expect(message).toContain('quiet: invoke-rc.d\nquiet: deb-systemd-invoke');
    expect(message).toMatch(/install .*failed: exit code 7/);
  });

  it('waits for another apt-get that holds the lock', async () => {
    const binary = binaryOrNothing();
    if (!binary) return;
    const PATH = emptyFolder();
    fakeAptGet(
      PATH,
      `case "$*" in
        *install*) /bin/ln -s ${binary} ${PATH}/redis-server;;
        *update*) test -e ${PATH}/second || { : > ${PATH}/second; echo 'E: Could not get lock /a/lock' >&2; exit 100; };;
      esac`,
    );
    const said: string[] = [];
    const provided = await provide({
      environment: { PATH },
      machine: { ...noContainers, uid: 0, osRelease: 'ID=mint\nID_LIKE="ubuntu debian"\n' },
      say: (line) => said.push(line),
    });

    expect(said).toContainEqual(expect.stringContaining('waiting for another apt-get'));
    expect(provided.source).toBe('installed');
  });

  it.each([
    ['elsewhere than on Debian', { uid: 0, osRelease: 'ID=fedora\n' }, 'neither Debian nor a derivative'],
    ['without root', { uid: 1000, osRelease: DEBIAN }, 'takes root'],
  ])('%s installs nothing and names every way when none is left', async (_, machine, reason) => {
    const PATH = emptyFolder();
    const apt = fakeAptGet(PATH, '');
    const said: string[] = [];
    const message = await refusal({
      environment: { PATH },
      machine: { ...noContainers, ...machine },
      say: (line) => said.push(line),
    });

    expect(said).toContainEqual(expect.stringContaining(reason));
    expect(apt.calls()).toEqual([]);
    for (const way of [
      'REDIS_URL',
      'redis-server or valkey-server on PATH',
      'container runtime',
      'as root',
    ]) {
      expect(message).toContain(way);
    }
  });
});

async function provide(options: ProvideRedisOptions): Promise<ProvidedRedis> {
  const provided = await provideRedis({ say: () => undefined, ...options });
  cleanUps.push(() => provided.stop());
  return provided;
}

async function refusal(options: ProvideRedisOptions): Promise<string> {
  const outcome = await provide(options).catch((error: Error) => error);
  if (!(outcome instanceof Error)) throw new Error(`A Redis was provided: ${outcome.url}`);
  return outcome.message;
}

function stepAside(because: string): undefined {
  console.info(`"${expect.getState().currentTestName}" steps aside: ${because}`);
}

function binaryOrNothing(): string | undefined {
  return serverBinary ?? stepAside('neither redis-server nor valkey-server is on PATH');
}

async function privateOrNothing(serverArguments: string[] = []): Promise<ProvidedRedis | undefined> {
  if (!binaryOrNothing()) return undefined;
  const provided = await privateRedis(serverArguments);
  cleanUps.push(() => provided.stop());
  return provided;
}

async function command<T>(url: string, ask: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = new Redis(url, { lazyConnect: true, retryStrategy: () => null });
  redis.on('error', () => undefined); // connect() rejects as well
  try {
    await redis.connect();
    return await ask(redis);
  } finally {
    redis.disconnect();
  }
}

function ping(url: string): Promise<string> {
  return command(url, (redis) => redis.ping());
}

async function serverInfo(provided: ProvidedRedis): Promise<Record<string, string>> {
  const info = await command(provided.url, (redis) => redis.info('server'));
  return Object.fromEntries(info.split('\r\n').map((line) => line.split(/:(.*)/s)));
}

function emptyFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'provide-redis-test-'));
  cleanUps.push(() => rmSync(folder, { recursive: true }));
  return folder;
}

function folderWith(links: Record<string, string>): string {
  const folder = emptyFolder();
  for (const [name, target] of Object.entries(links)) symlinkSync(target, join(folder, name));
  return folder;
}

/** A port where connections are taken, and nothing more is heard. */
async function silentPort(): Promise<number> {
  const server = createServer((socket) => socket.on('error', () => undefined));
  cleanUps.push(() => server.close());
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as AddressInfo).port;
}

async function ofAnotherProcess(way: 'stays alive' | 'forgets stop()'): Promise<RedisOfAnotherProcess> {
  const redis = await redisOfAnotherProcess(way);
  cleanUps.push(() => redis.parent.kill('SIGKILL'));
  return redis;
}

function isAlive(pid: number | undefined): boolean {
  if (pid === undefined) throw new Error('There is no process id.');
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + 5_000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`Still not so after 5 s: ${condition}`);
    await pause(10);
  }
}
