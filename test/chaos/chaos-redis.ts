import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { provideRedis } from '../support/redis/provide-redis.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';

/** A Redis that writes everything to disk before it answers, so that nothing it said is lost when it is killed. */
export interface ChaosRedis {
  readonly url: string;
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export async function startChaosRedis(): Promise<ChaosRedis> {
  const folder = await mkdtemp(join(tmpdir(), 'lock-chaos-'));
  const durable = ['--appendonly', 'yes', '--appendfsync', 'always', '--dir', folder];
  const start = (port?: number): Promise<ProvidedRedis> =>
    provideRedis({
      private: true,
      arguments: durable,
      ...(port === undefined ? {} : { machine: { freePort: async () => port } }),
    });
  let server = await start();
  const { url } = server;
  return {
    url,
    async restart() {
      if (server.pid === undefined) throw new Error('Only a Redis that is a process of ours can be killed');
      process.kill(server.pid, 'SIGKILL');
      await server.stop();
      server = await start(Number(new URL(url).port));
    },
    async stop() {
      await server.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
