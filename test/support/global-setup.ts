import { mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
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
