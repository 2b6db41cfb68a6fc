import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { transformSync } from '@swc/core';
import { packTo } from '../support/packed-package.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

const run = promisify(execFile);

const NEST_11 = ['@nestjs/common@11', '@nestjs/core@11', 'reflect-metadata', 'rxjs'];
const NEST_12 = ['@nestjs/common@12', '@nestjs/core@12', 'reflect-metadata', 'rxjs'];

/** What makes Jest transform the package, which is ES modules, for CommonJS; pnpm has it in a folder of a longer name. */
const IGNORE_PATTERNS = "transformIgnorePatterns: ['/node_modules/(?!.*nestjs-redis-lock)']";
/** What keeps ioredis, and with it the locks, going under Jest's fake timers. */
const FAKE_TIMERS = "jest.useFakeTimers({ doNotFake: ['nextTick'] });";

/** A service with a locked method and a transaction, in an application that is started and closed. */
const APPLICATION = `
import 'reflect-metadata';
import { Inject, Injectable, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';
import { LockContext, LockNotAcquiredError, LockService, RedisLockModule, WithLock } from 'nestjs-redis-lock';

const client = new Redis(process.env.TEST_REDIS_URL as string);

@Injectable()
export class Orders {
  constructor(@Inject(LockContext) private readonly context: LockContext) {}

  @WithLock('consumer:<id>')
  async pay(id: string, amount: number): Promise<number> {
    const { multi, key, fencingToken } = this.context;
    multi.incrby(key('paid'), amount).expire(key('paid'), 60);
    if (!(fencingToken > 0)) throw new Error('no fencing token');
    return amount;
  }
}

@Module({
  imports: [RedisLockModule.forRoot({ connection: client, ttl: 2_000 })],
  providers: [Orders],
})
export class AppModule {}

export async function main(): Promise<string> {
  const app = await NestFactory.createApplicationContext(AppModule, { logger: ['error'] });
  const id = process.env.CONSUMER as string;
  const locks = app.get(LockService);
  const paid = await app.get(Orders).pay(id, 5);
  const held = await locks.acquire('consumer:' + id);
  const busy = await app.get(Orders).pay(id, 5).catch((error: unknown) => error);
  await held.release();
  const total = await client.get('{consumer:' + id + '}:paid');
  await client.del('{consumer:' + id + '}:paid', 'lock:fence:{consumer:' + id + '}');
  await app.close();
  client.disconnect();
  return [paid, total, busy instanceof LockNotAcquiredError].join();
}
`;
const MAIN = `${APPLICATION}\nmain().then((said) => console.log(said));\n`;
const SAID = '5,5,true';

const TEST = (globals: string) => `
${globals}
import { main } from './app${globals === '' ? '' : '.js'}';
describe('an application', () => {
  it('has its methods locked', async () => {
    expect(await main()).toBe('${SAID}');
  });
});
`;

const TEST_WITH_FAKE_TIMERS = `
${FAKE_TIMERS}
${TEST('')}`;
const JEST_OF_COMMONJS = {
  'package.json': JSON.stringify({ private: true }),
  'jest.config.js': `module.exports = {
    transform: { '^.+\\\\.[jt]s$': ['@swc/jest', { jsc: { parser: { syntax: 'typescript', decorators: true },
      transform: { legacyDecorator: true, decoratorMetadata: true } }, module: { type: 'commonjs' } }] },
    ${IGNORE_PATTERNS},
  };`,
  'app.ts': APPLICATION,
  'app.test.ts': TEST(''),
  'fake-timers.test.ts': TEST_WITH_FAKE_TIMERS,
};
const PACKAGES_FOR_JEST = [...NEST_11, 'ioredis@5', 'jest@30', '@swc/core', '@swc/jest'];

describe('case 10: a project that installs the packed package', () => {
  let folder: string;
  let tarball: string;
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'consumers-'));
    tarball = await packTo(folder);
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** A project of its own, with what it needs from the registry. */
  async function project(
    name: string,
    packages: readonly string[],
    files: Record<string, string>,
    installer: 'npm' | 'pnpm' = 'npm',
  ) {
    const root = join(folder, name);
    mkdirSync(root);
    for (const [file, text] of Object.entries(files)) {
      mkdirSync(dirname(join(root, file)), { recursive: true });
      writeFileSync(join(root, file), text);
    }
    if (installer === 'npm') await npmInstall(root, tarball, ...packages);
    else await run(await pnpm(), ['add', tarball, ...packages], { cwd: root });
    return async (command: string, ...args: string[]): Promise<string> => {
      const env = { ...process.env, TEST_REDIS_URL: sharedRedisUrl(), CONSUMER: name };
      const { stdout, stderr } = await run(join(root, 'node_modules/.bin', command), args, {
        cwd: root,
        env,
        timeout: 60_000,
      }).catch((error: { stdout: string; stderr: string }) => {
        throw new Error(`${command} failed in ${name}:\n${error.stdout}\n${error.stderr}`);
      });
      return `${stdout}${stderr}`;
    };
  }
  const npmInstall = (root: string, ...packages: string[]) =>
    run('npm', ['install', '--no-audit', '--no-fund', '--no-save', ...packages], { cwd: root });
  const pnpm = async () => {
    const root = join(folder, 'pnpm');
    mkdirSync(root);
    writeFileSync(join(root, 'package.json'), '{ "private": true }');
    await npmInstall(root, 'pnpm@10');
    return join(root, 'node_modules/.bin/pnpm');
  };
  const node = (name: string, file: string, binary = process.execPath) =>
    run(binary, [file], {
      cwd: join(folder, name),
      env: { ...process.env, TEST_REDIS_URL: sharedRedisUrl(), CONSUMER: name, NODE_OPTIONS: '' },
      timeout: 60_000,
    }).then(({ stdout }) => stdout.trim());

  const compilerOptions = {
    target: 'es2022',
    strict: true,
    experimentalDecorators: true,
    emitDecoratorMetadata: true,
    outDir: 'dist',
    rootDir: 'src',
    types: ['node'],
    skipLibCheck: true,
  };
  const json = (value: object) => JSON.stringify(value);

  it('works with Nest 12 and ioredis 6, as ES modules', async () => {
    const bin = await project('nest12-esm', [...NEST_12, 'ioredis@6', 'typescript@6', '@types/node@20'], {
      'package.json': json({ private: true, type: 'module' }),
      'tsconfig.json': json({ compilerOptions: { ...compilerOptions, module: 'nodenext' } }),
      'src/main.ts': MAIN,
    });
    await bin('tsc');
    expect(await node('nest12-esm', 'dist/main.js')).toBe(SAID);
  });

  it.each(['22', '24', '26'])('works on Node %s', async (version) => {
    const name = `node-${version}`;
    const platform = `node-${process.platform}-${process.arch}`;
    await project(name, [...NEST_12, 'ioredis@6', `${platform}@${version}`], {
      'package.json': json({ private: true, type: 'module' }),
      'main.js': transformSync(MAIN, {
        jsc: {
          parser: { syntax: 'typescript', decorators: true },
          transform: { legacyDecorator: true, decoratorMetadata: true },
          target: 'es2022',
        },
        module: { type: 'es6' },
      }).code,
    });
    const binary = join(folder, name, 'node_modules', platform, 'bin/node');
    const { stdout } = await run(binary, ['-e', 'console.log(process.versions.node)']);
    expect(stdout).toMatch(new RegExp(`^${version}\\.`));
    expect(await node(name, 'main.js', binary)).toBe(SAID);
  });

  it('works with Nest 11 and ioredis 5, as CommonJS that requires it', async () => {
    const bin = await project('nest11-cjs', [...NEST_11, 'ioredis@5', 'typescript@5.9', '@types/node@20'], {
      'package.json': json({ private: true, type: 'commonjs' }),
      'tsconfig.json': json({ compilerOptions: { ...compilerOptions, module: 'nodenext' } }),
      'src/main.ts': MAIN,
    });
    await bin('tsc');
    expect(await node('nest11-cjs', 'dist/main.js')).toBe(SAID);
  });

  it('works with tsx, which has no metadata of decorators, and bundler resolution', async () => {
    const bin = await project('tsx', [...NEST_12, 'ioredis@6', 'typescript@6', 'tsx', '@types/node@20'], {
      'package.json': json({ private: true, type: 'module' }),
      'tsconfig.json': json({
        compilerOptions: { ...compilerOptions, module: 'esnext', moduleResolution: 'bundler' },
      }),
      'src/main.ts': MAIN,
    });
    await bin('tsc', '--noEmit');
    expect((await bin('tsx', 'src/main.ts')).trim()).toBe(SAID);
  });

  it('is tested with Jest as ES modules', async () => {
    const bin = await project(
      'jest-esm',
      [...NEST_12, 'ioredis@6', 'jest@30', '@jest/globals@30', '@swc/core', '@swc/jest'],
      {
        'package.json': json({ private: true, type: 'module' }),
        'jest.config.js': `export default {
          extensionsToTreatAsEsm: ['.ts'],
          moduleNameMapper: { '^(\\\\.{1,2}/.*)\\\\.js$': '$1' },
          transform: { '^.+\\\\.ts$': ['@swc/jest', { jsc: { parser: { syntax: 'typescript', decorators: true },
            transform: { legacyDecorator: true, decoratorMetadata: true } }, module: { type: 'es6' } }] },
        };`,
        'app.ts': APPLICATION,
        'app.test.ts': TEST("import { describe, expect, it } from '@jest/globals';"),
      },
    );
    process.env['NODE_OPTIONS'] = '--experimental-vm-modules';
    try {
      expect(await bin('jest')).toContain('1 passed');
    } finally {
      delete process.env['NODE_OPTIONS'];
    }
  });

  it('is tested with Jest as CommonJS, also with fake timers, in the way that the README says', async () => {
    const bin = await project('jest-cjs', PACKAGES_FOR_JEST, JEST_OF_COMMONJS);
    expect(await bin('jest', '--runInBand')).toContain('Tests:       2 passed, 2 total');
    const readme = readFileSync(join(import.meta.dirname, '../../README.md'), 'utf8');
    expect(readme).toContain(IGNORE_PATTERNS);
    expect(readme).toContain(FAKE_TIMERS);
  });

  it('is tested with Jest in the same way where pnpm has installed it', async () => {
    const bin = await project('jest-pnpm', PACKAGES_FOR_JEST, JEST_OF_COMMONJS, 'pnpm');
    expect(await bin('jest', '--runInBand')).toContain('Tests:       2 passed, 2 total');
  });

  it('is in order for publint, and for arethetypeswrong', async () => {
    const bin = await project('checks', ['publint', '@arethetypeswrong/cli'], {
      'package.json': json({ private: true }),
    });
    expect(await bin('publint', tarball, '--strict')).toContain('All good');
    // It fails where there is a problem.
    expect(await bin('attw', tarball, '--profile', 'esm-only', '--no-emoji')).toContain('OK (ESM)');
  });
});
