import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

interface FakeAptGet {
  /** One line a call: DEBIAN_FRONTEND, then the arguments. */
  calls(): string[];
}

/** Puts an apt-get into `folder` that notes down how it is called, then does what the shell script `then` says. */
export function fakeAptGet(folder: string, then: string): FakeAptGet {
  const log = join(folder, 'calls');
  writeFileSync(log, '');
  const script = `#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >> '${log}'\n${then}\n`;
  writeFileSync(join(folder, 'apt-get'), script, { mode: 0o755 });
  return { calls: () => readFileSync(log, 'utf8').split('\n').slice(0, -1) };
}
