import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const ROOT = join(import.meta.dirname, '../..');

/** Builds and packs the package, apart from the project, where other tests may be at work. */
export async function packTo(folder: string): Promise<string> {
  const source = join(folder, 'source');
  mkdirSync(source, { recursive: true });
  for (const name of ['lib', 'package.json', 'tsconfig.json', 'README.md', 'LICENSE']) {
    cpSync(join(ROOT, name), join(source, name), { recursive: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(source, 'node_modules'));
  const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
  await run(process.execPath, [tsc, '-p', 'lib/tsconfig.build.json'], { cwd: source });
  const { stdout } = await run('npm', ['pack', '--silent', '--pack-destination', folder], { cwd: source });
  return join(folder, stdout.trim());
}
