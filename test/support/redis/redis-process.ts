import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { startChildThatEndsWithUs, type ChildThatEndsWithUs } from './child-that-ends-with-us.js';
import type { Start } from './machine.js';
import type { ProvidedRedis } from './provide-redis.js';
import { inWords, untilPingAnswers } from './until-ping-answers.js';

const TRIES = 5;
const PORT_TAKEN = /already in use/i;

/** Starts a server on a free loopback port. It keeps nothing on disk and ends with this process. */
export async function startRedisProcess(
  binary: string,
  start: Start,
): Promise<Omit<ProvidedRedis, 'source'>> {
  for (let tried = 1; ; tried++) {
    const port = await start.machine.freePort();
    const server = await startChildThatEndsWithUs(
      [binary, ...start.configFile, ...argumentsFor(port), ...start.arguments],
      start.environment,
    );
    const url = `redis://127.0.0.1:${port}`;
    try {
      await untilPingAnswers(url, {
        within: start.within,
        isHopeless: () => server.hasEnded(),
        alsoCheck: (redis) => checkThatItIs(server, redis),
      });
      const stop = async () => {
        await server.end();
        await rm(join(tmpdir(), fileOf(port)), { force: true });
      };
      return { url, pid: server.pid, stop };
    } catch (problem) {
      const endedByItself = server.hasEnded();
      const output = server.output();
      await server.end();
      // Someone else may have bound the port after it was found free.
      if (endedByItself && tried < TRIES && PORT_TAKEN.test(output)) continue;
      const what = endedByItself
        ? 'ended at its start'
        : `did not answer PING within ${start.within} ms: ${inWords(problem as Error)}`;
      throw new Error(`${binary} ${what}. Its output:\n${output}`);
    }
  }
}

function fileOf(port: number): string {
  return `redis-${port}.rdb`;
}

function argumentsFor(port: number): string[] {
  const listen = ['--bind', '127.0.0.1', '--port', String(port)];
  const keepNothing = ['--save', '', '--appendonly', 'no', '--dir', tmpdir()];
  // Replication writes a file all the same, which no other server may load.
  const ownFile = ['--dbfilename', fileOf(port)];
  return [...listen, ...keepNothing, ...ownFile];
}

/** If the port was taken by another Redis, that one answers PING while ours is still about to give up. */
async function checkThatItIs(server: ChildThatEndsWithUs, redis: Redis): Promise<void> {
  const pid = /^process_id:(\d+)/m.exec(await redis.info('server'))?.[1];
  if (Number(pid) !== server.pid) throw new Error(`process ${pid} answers instead of process ${server.pid}`);
}
