import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { transformSync } from '@swc/core';
import type { ProvidedRedis } from './redis/provide-redis.js';

declare global {
  // How the global teardown, which runs in the same process, finds the server.
  var redisOfTheTestRun: ProvidedRedis | undefined;
}

/** Jest global setup: one Redis for the whole run. Tests get its address from support/redis/test-redis.ts. */
export default async function globalSetup({ rootDir }: { rootDir: string }): Promise<void> {
  const file = compileProvideRedis(rootDir);
  const { provideRedis } = createRequire(file)(file) as typeof import('./redis/provide-redis.js');
  const redis = await provideRedis();
  globalThis.redisOfTheTestRun = redis;
  // Jest's workers inherit these.
  process.env.TEST_REDIS_URL = redis.url;
  process.env.TEST_PROVIDE_REDIS = file;
  process.env.TEST_LOCK_WORKER = compileLockWorker(rootDir);
}

/** The library and the worker that tests fork, for plain Node: below the root, where it finds its packages. */
function compileLockWorker(rootDir: string): string {
  const to = mkdtempSync(join(rootDir, '.test-build-'));
  process.once('exit', () => rmSync(to, { recursive: true, force: true }));
  const sources = ['lib', 'test/support/processes'].flatMap((folder) =>
    readdirSync(join(rootDir, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts'))
      .map((name) => join(folder, name)),
  );
  for (const source of sources) {
    const { code } = transformSync(readFileSync(join(rootDir, source), 'utf8'), {
      filename: source,
      configFile: false,
      swcrc: false,
      jsc: {
        parser: { syntax: 'typescript', decorators: true },
        transform: { legacyDecorator: true, decoratorMetadata: true },
        target: 'es2022',
      },
      module: { type: 'es6' },
    });
    const file = join(to, source.replace(/\.ts$/, '.js'));
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, code);
  }
  return join(to, 'test/support/processes/lock-worker.js');
}

/**
 * Jest loads a global setup with require() and without the configured module mapping, so from here an import of
 * './redis/provide-redis.js' finds no file. Hence a compiled copy, which plain Node can load, from here and from the
 * child processes of a test.
 */
function compileProvideRedis(rootDir: string): string {
  const from = join(rootDir, 'test/support/redis');
  const to = mkdtempSync(join(tmpdir(), 'provide-redis-'));
  process.once('exit', () => rmSync(to, { recursive: true, force: true }));
  symlinkSync(join(rootDir, 'node_modules'), join(to, 'node_modules'), 'junction');
  for (const name of readdirSync(from).filter((each) => each.endsWith('.ts'))) {
    const { code } = transformSync(readFileSync(join(from, name), 'utf8'), {
      filename: name,
      configFile: false,
      swcrc: false,
      jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
      module: { type: 'commonjs' },
    });
    writeFileSync(join(to, name.replace(/\.ts$/, '.js')), code);
  }
  return join(to, 'provide-redis.js');
}
