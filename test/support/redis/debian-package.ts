import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { findOnPath } from './find-on-path.js';
import type { Start } from './machine.js';

const LOCK_WAIT_S = 120;
const LOCKED = /could not get lock|unable to lock|unable to acquire/i;

/** Why the package cannot be installed here; nothing when it can. */
export function whyNotInstallable({ environment, machine }: Start): string | undefined {
  if (!/^(ID|ID_LIKE)=.*\b(debian|ubuntu)\b/m.test(machine.osRelease)) {
    return 'this is neither Debian nor a derivative';
  }
  if (!findOnPath(['apt-get'], environment)) return 'apt-get is not on PATH';
  if (machine.uid !== 0) return 'that takes root';
  return undefined;
}

export async function installRedisPackage(start: Start): Promise<void> {
  start.say('Redis: installing the Debian package redis-server with apt-get, without starting its service');
  const withoutServices = await mkdtemp(join(tmpdir(), 'no-services-'));
  try {
    await aptGet(['update'], start);
    await hideServiceStarters(withoutServices);
    await aptGet(
      [
        `-oDPkg::Lock::Timeout=${LOCK_WAIT_S}`,
        `-oDPkg::Path=${withoutServices}:/usr/sbin:/usr/bin:/sbin:/bin`,
        'install',
        '-y',
        '--no-install-recommends',
        'redis-server',
      ],
      start,
    );
  } finally {
    await rm(withoutServices, { recursive: true });
  }
}

/**
 * The package starts a Redis on port 6379 as soon as it is installed: through one of these two commands, which it
 * finds on dpkg's PATH. Here it finds others first, which do nothing. Nothing of that outlives the installation.
 */
async function hideServiceStarters(folder: string): Promise<void> {
  for (const name of ['invoke-rc.d', 'deb-systemd-invoke']) {
    await writeFile(join(folder, name), '#!/bin/sh\nexit 0\n', { mode: 0o755 });
  }
}

/** Runs apt-get. Its own lock timeout does not cover the lock on the package lists, so that one is waited for here. */
async function aptGet(args: string[], { environment, say }: Start): Promise<void> {
  const command = findOnPath(['apt-get'], environment) ?? 'apt-get';
  const deadline = performance.now() + LOCK_WAIT_S * 1_000;
  for (let waits = 0; ; waits++) {
    const { failure, output } = await run(command, args, {
      ...environment,
      DEBIAN_FRONTEND: 'noninteractive',
      NEEDRESTART_SUSPEND: '1', // Ubuntu would otherwise restart services that have nothing to do with us
      LC_ALL: 'C', // what is matched above is the English message
    });
    if (!failure) return;
    if (!LOCKED.test(output) || performance.now() > deadline) {
      throw new Error(`apt-get ${args.join(' ')} failed: ${failure.message}\n${output.slice(-4_000)}`);
    }
    if (waits === 0) say('Redis: waiting for another apt-get');
    await pause(500);
  }
}

function run(
  command: string,
  args: string[],
  env: NodeJS.ProcessEnv,
): Promise<{ failure?: Error; output: string }> {
  return new Promise((resolve) => {
    const maxBuffer = Infinity;
    const child = execFile(command, args, { env, maxBuffer }, (error, stdout, stderr) => {
      const output = stdout + stderr;
      // The error's message would repeat the output.
      resolve(error ? { failure: new Error(`exit code ${error.code ?? error.signal}`), output } : { output });
    });
    child.stdin?.end();
  });
}
