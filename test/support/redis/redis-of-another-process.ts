import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import { compiledProvideRedis } from './test-redis.js';

export interface RedisOfAnotherProcess {
  /** The process that called provideRedis. */
  readonly parent: ChildProcess;
  /** The Redis server of that process. */
  readonly pid: number;
  /** Its exit code and signal, once it has ended. */
  readonly exited: Promise<unknown[]>;
}

const PROGRAM = `
  const [file, way] = process.argv.slice(1);
  require(file).provideRedis({ private: true }).then(({ pid }) => {
    process.stdout.write(pid + '\\n');
    if (way === 'stays alive') setInterval(() => undefined, 1000);
  });
`;

/** A Redis that another process provides for itself: a process that can be killed, or that never calls stop(). */
export async function redisOfAnotherProcess(
  way: 'stays alive' | 'forgets stop()',
): Promise<RedisOfAnotherProcess> {
  const parent = spawn(process.execPath, ['-e', PROGRAM, compiledProvideRedis(), way], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(parent, 'exit');
  const pid = Number(await firstChunk(parent.stdout));
  if (!pid) throw new Error('The other process provided no Redis.');
  return { parent, pid, exited };
}

async function firstChunk(stream: Readable): Promise<string> {
  const [chunk] = await Promise.race([once(stream, 'data'), once(stream, 'end')]);
  return String(chunk ?? '');
}
