import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const ROOT = join(import.meta.dirname, '../..');

/** Packs the package as in a clean clone, which builds it, apart from the project, where other tests may be at work. */
export async function packTo(folder: string): Promise<string> {
  const source = join(folder, 'source');
  mkdirSync(source, { recursive: true });
  for (const name of ['lib', 'package.json', 'nest-cli.json', 'tsconfig.json', 'README.md', 'LICENSE']) {
    cpSync(join(ROOT, name), join(source, name), { recursive: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(source, 'node_modules'));
  const { stdout } = await run('npm', ['pack', '--silent', '--pack-destination', folder], { cwd: source });
  return join(folder, stdout.trim());
}
