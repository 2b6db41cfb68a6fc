import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { packTo } from '../support/packed-package.js';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';

const ROOT = join(import.meta.dirname, '../..');
const run = promisify(execFile);

const CONSUMER = `
import { Injectable } from '@nestjs/common';
import { LockContext, LockInterceptor, LockNotAcquiredError, LockService, RedisLockModule, WithLock } from 'nestjs-redis-lock';
import type { Lock, RedisLockModuleOptions } from 'nestjs-redis-lock';

@Injectable()
export class Shop {
  constructor(private readonly context: LockContext, private readonly locks: LockService) {}

  @WithLock('order:<id>')
  async buy(id: string): Promise<string> {
    this.context.multi.set('a', id);
    const lock: Lock | null = await this.locks.tryAcquire('x');
    return String(lock?.fencingToken);
  }
}
export const options: RedisLockModuleOptions = { ttl: 1_000 };
export const module = RedisLockModule.forRoot(options);
export const interceptor = LockInterceptor('a:<params.id>');
export const isBusy = (error: unknown) => error instanceof LockNotAcquiredError && error.reason === 'busy';
`;

/** The packed tarball, unpacked into a project that has our peers, as a user's project would have it. */
describe('case 10: the packed package', () => {
  let project: string;

  beforeAll(async () => {
    project = mkdtempSync(join(tmpdir(), 'consumer-'));
    await run('tar', ['-xzf', await packTo(project)], { cwd: project });
    const modules = join(project, 'node_modules');
    mkdirSync(modules);
    cpSync(join(project, 'package'), join(modules, 'nestjs-redis-lock'), { recursive: true });
    for (const name of [
      '@nestjs',
      '@types',
      '@standard-schema',
      'acorn',
      'cluster-key-slot',
      'ioredis',
      'reflect-metadata',
      'rxjs',
      'undici-types',
    ]) {
      symlinkSync(join(ROOT, 'node_modules', name), join(modules, name));
    }
    writeFileSync(join(project, 'consumer.ts'), CONSUMER);
    writeFileSync(join(project, 'consumer.mts'), CONSUMER);
    writeFileSync(join(project, 'consumer.cts'), CONSUMER);
  }, 60_000);
  afterAll(() => rmSync(project, { recursive: true, force: true }));

  it('has what it needs, and nothing else', async () => {
    const { stdout } = await run('find', ['package', '-type', 'f'], { cwd: project });
    const files = stdout.trim().split('\n');
    expect(files).toEqual(
      expect.arrayContaining(['package/dist/index.js', 'package/dist/index.d.ts', 'package/LICENSE']),
    );
    expect(files.filter((file) => !/^package\/(dist\/|package\.json|README\.md|LICENSE)/.test(file))).toEqual(
      [],
    );
  });

  it.each([
    ['nodenext, as ES modules', 'nodenext', 'consumer.mts'],
    ['nodenext, required by CommonJS', 'nodenext', 'consumer.cts'],
    ['bundler', 'bundler', 'consumer.ts'],
  ])(
    'has types that resolve and compile: %s',
    async (_how, resolution, file) => {
      const module = resolution === 'bundler' ? 'esnext' : 'nodenext';
      const strict = [
        '--strict',
        '--target',
        'es2022',
        '--lib',
        'es2023,esnext.disposable',
        '--types',
        'node',
      ];
      const decorators = ['--experimentalDecorators', '--emitDecoratorMetadata'];
      const args = [
        '--noEmit',
        ...strict,
        ...decorators,
        '--module',
        module,
        '--moduleResolution',
        resolution,
      ];
      const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
      // Errors inside of other packages, seen through links, are not ours to judge.
      const { stdout } = await run(process.execPath, [tsc, ...args, '--skipLibCheck', 'false', file], {
        cwd: project,
      }).catch((error: { stdout: string }) => error);
      const ours = stdout
        .split('\n')
        .filter((line) => /^(consumer|node_modules\/nestjs-redis-lock)/.test(line));
      expect(ours).toEqual([]);
    },
    60_000,
  );

  it('can be imported, and required', async () => {
    const names =
      'Object.keys(m).filter((name) => /^(WithLock|LockService|RedisLockModule)$/.test(name)).length';
    const imported = await run(
      process.execPath,
      ['--input-type=module', '-e', `import * as m from 'nestjs-redis-lock'; console.log(${names})`],
      { cwd: project },
    );
    const required = await run(
      process.execPath,
      ['--input-type=commonjs', '-e', `const m = require('nestjs-redis-lock'); console.log(${names})`],
      { cwd: project },
    );
    expect([imported.stdout.trim(), required.stdout.trim()]).toEqual(['3', '3']);
  });
});
