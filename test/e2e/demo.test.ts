import { execFile, spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const ROOT = join(import.meta.dirname, '../..');
const DEMO = join(ROOT, 'sample-app/dist/sample-app/demo.js');
const BUILD_WITHIN = 120_000;
const RUN_WITHIN = 60_000;

beforeAll(() => promisify(execFile)('npm', ['run', '--silent', 'build:sample'], { cwd: ROOT }), BUILD_WITHIN);

const started: Demo[] = [];
afterEach(async () => {
  const left = started.splice(0).flatMap((demo) => demo.processes());
  for (const pid of left) process.kill(pid, 'SIGKILL');
  expect(left).toEqual([]);
});

describe('npm run demo', () => {
  it(
    'sells exactly the tickets there are when locked',
    async () => {
      const { exitCode, output } = await startDemo(['--buyers', '120', '--tickets', '20']).end();

      expect({ exitCode, output }).toMatchObject({ exitCode: 0 });
      const [withoutLock = 0, locked] = figures(output, 'orders recorded');
      expect(withoutLock).toBeGreaterThan(20);
      expect(locked).toBe(20);
      expect(figures(output, 'oversold')).toEqual([withoutLock - 20, 0]);
      expect(figures(output, 'tickets sold, by the stock')[1]).toBe(20);
      expect(figures(output, 'seats sold more than once')[1]).toBe(0);
      expect(figures(output, 'buyers told "sold out" \\(410\\)')[1]).toBe(100);
      expect(lastLine(output)).toMatch(/^OK: .* with @WithLock exactly the 20 there are\.$/);
    },
    RUN_WITHIN,
  );

  it(
    'exits 1 without the lock',
    async () => {
      const demo = startDemo(['--without-lock', '--buyers', '120', '--tickets', '20']);
      const { exitCode, output } = await demo.end();

      expect({ exitCode, output }).toMatchObject({ exitCode: 1 });
      expect(figures(output, 'oversold')[1]).toBeGreaterThan(0);
      expect(lastLine(output)).toMatch(/^FAILED: .* its lock was taken away \(--without-lock\)\.$/);
    },
    RUN_WITHIN,
  );

  it.each([
    ['--no-such-flag', '--no-such-flag'],
    ['--buyers=many', '--buyers must be an integer'],
  ])('exits 2 and names what is wrong about %s', async (flag, named) => {
    const { exitCode, output, errors } = await startDemo([flag]).end();

    expect({ exitCode, output }).toEqual({ exitCode: 2, output: '' });
    expect(errors).toContain(named);
    expect(errors).toContain('Usage: npm run demo');
  });

  it(
    'on Ctrl-C leaves neither a process nor a key behind',
    async () => {
      const demo = startDemo([], { REDIS_URL: sharedRedisUrl() });
      // The second sale is on, so that there is something of everything to clean up.
      while ((await keys('lock:fence:{concert:demo-*')).length === 0) expect(demo.hasEnded()).toBe(false);

      demo.pressCtrlC();
      expect(await demo.end()).toMatchObject({ exitCode: 130 });
      expect(demo.processes()).toEqual([]);
      expect(await keys('*{concert:demo-*')).toEqual([]);
    },
    RUN_WITHIN,
  );

  it(
    'says so and ends everything when a shop dies',
    async () => {
      const demo = startDemo([]);
      await demo.saysSomething();
      const [shop] = demo.processes('sample-app/main.js');
      if (shop === undefined) return console.info('stepping aside: there is no /proc to find a shop by');

      process.kill(shop, 'SIGKILL');
      const { exitCode, errors } = await demo.end();
      expect(exitCode).toBe(1);
      expect(errors).toMatch(new RegExp(`Shop \\d \\(process ${shop}\\) ended by SIGKILL`));
    },
    RUN_WITHIN,
  );
});

interface Demo {
  saysSomething(): Promise<void>;
  hasEnded(): boolean;
  /** To the whole process group, as a terminal does. */
  pressCtrlC(): void;
  /** Resolves when it has ended. */
  end(): Promise<{ exitCode: number | null; output: string; errors: string }>;
  /** Process ids of all that it started and that are alive, itself included; by /proc, where there is one. */
  processes(command?: string): number[];
}

/** Runs the demo as a user does, in a process group of its own and without a Redis that is given to it. */
function startDemo(args: readonly string[], environment: NodeJS.ProcessEnv = {}): Demo {
  const { REDIS_URL: _redisUrl, ...inherited } = process.env;
  // Whatever the demo starts inherits this, and can be told by it.
  const mark = `DEMO_TEST_RUN=${randomUUID()}`;
  const [name = '', value] = mark.split('=');
  const demo = spawn(process.execPath, [DEMO, ...args], {
    env: { ...inherited, ...environment, [name]: value },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  const closed = once(demo, 'close') as Promise<[number | null]>;
  const output = textOf(demo.stdout);
  const errors = textOf(demo.stderr);
  const result: Demo = {
    saysSomething: async () => {
      await Promise.race([once(demo.stdout, 'data'), closed]);
      if (output() === '') throw new Error(`The demo ended without a word: ${errors()}`);
    },
    hasEnded: () => demo.exitCode !== null || demo.signalCode !== null,
    pressCtrlC: () => process.kill(-demo.pid!, 'SIGINT'),
    end: async () => {
      const [exitCode] = await closed;
      return { exitCode, output: output(), errors: errors() };
    },
    processes: (command = '') => processesWith(mark).filter((pid) => commandOf(pid).includes(command)),
  };
  started.push(result);
  return result;
}

function textOf(stream: NonNullable<ChildProcess['stdout']>): () => string {
  let text = '';
  stream.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
  return () => text;
}

function processesWith(mark: string): number[] {
  if (!existsSync('/proc/self/environ')) return [];
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  return pids.filter((pid) => fileOf(pid, 'environ').split('\0').includes(mark)).map(Number);
}

function commandOf(pid: number): string {
  return fileOf(String(pid), 'cmdline').replaceAll('\0', ' ');
}

/** Empty when the process has ended meanwhile, or is not ours. */
function fileOf(pid: string, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'utf8');
  } catch {
    return '';
  }
}

/** A line of the table: the figure of the first run and of the second. */
function figures(output: string, name: string): number[] {
  const line = new RegExp(`^${name} +(\\d+) +(\\d+)$`, 'm').exec(output);
  if (!line) throw new Error(`There is no line "${name}" in:\n${output}`);
  return line.slice(1).map(Number);
}

function lastLine(output: string): string {
  return output.trimEnd().split('\n').at(-1) ?? '';
}

async function keys(pattern: string): Promise<string[]> {
  const redis = new Redis(sharedRedisUrl());
  try {
    return await redis.keys(pattern);
  } finally {
    redis.disconnect();
  }
}
