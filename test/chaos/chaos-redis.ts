import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { eventually } from '../support/eventually.js';
import { provideRedis } from '../support/redis/provide-redis.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { FORGER } from './forger.js';

/** ms a replica may take to have everything, and to take over. */
const FAILOVER_WITHIN = 10_000;

/** A Redis that writes everything to disk before it answers, so that nothing it said is lost when it is killed. */
export class ChaosRedis {
  #primary: Instance;
  #replica: Instance | undefined;

  private constructor(primary: Instance) {
    this.#primary = primary;
  }

  static async start(): Promise<ChaosRedis> {
    return new ChaosRedis(await Instance.start());
  }

  /** Of the server that is the primary now. */
  get url(): string {
    return this.#primary.url;
  }

  /** Talks to the server that is the primary now. */
  get admin(): Redis {
    return this.#primary.admin;
  }

  restart(): Promise<void> {
    return this.#primary.restart();
  }

  /**
   * Makes another server the primary, which has everything by then. The one before becomes its replica: it goes on, and
   * keeps its connections.
   */
  async failOver(): Promise<void> {
    const primary = this.#primary;
    const next = (this.#replica ??= await Instance.start());
    await primary.isFollowedBy(next);
    await primary.admin.call('FAILOVER', 'TO', '127.0.0.1', next.port, 'TIMEOUT', FAILOVER_WITHIN);
    await eventually(() => next.is('master'), FAILOVER_WITHIN);
    this.#primary = next;
    this.#replica = primary;
    await eventually(() => primary.is('slave'), FAILOVER_WITHIN);
  }

  /** Leaves the primary alone, if there has been a failover. */
  async endReplica(): Promise<void> {
    const replica = this.#replica;
    this.#replica = undefined;
    await replica?.stop();
  }

  async stop(): Promise<void> {
    await this.endReplica();
    await this.#primary.stop();
  }
}

/** One server, with a folder of its own. */
class Instance {
  readonly url: string;
  readonly port: number;
  readonly admin: Redis;
  readonly #folder: string;
  #server: ProvidedRedis;

  private constructor(server: ProvidedRedis, folder: string) {
    this.url = server.url;
    this.port = Number(new URL(server.url).port);
    this.#server = server;
    this.#folder = folder;
    this.admin = new Redis(server.url, { disconnectTimeout: 0, retryStrategy: () => 20 });
    this.admin.on('error', () => undefined); // some of it is the nemesis' own doing; its commands reject as well
  }

  static async start(): Promise<Instance> {
    const folder = await mkdtemp(join(tmpdir(), 'lock-chaos-'));
    return new Instance(await launch(folder), folder);
  }

  /** Kills it without notice, and starts it again with what it has on disk. */
  async restart(): Promise<void> {
    if (this.#server.pid === undefined)
      throw new Error('Only a Redis that is a process of ours can be killed');
    process.kill(this.#server.pid, 'SIGKILL');
    await this.#server.stop();
    this.#server = await launch(this.#folder, this.port);
  }

  async is(role: 'master' | 'slave'): Promise<boolean> {
    const [is] = (await this.admin.role()) as unknown[];
    return is === role;
  }

  /** Makes the other one its replica, if it is not yet, and waits until that has everything. */
  async isFollowedBy(replica: Instance): Promise<void> {
    if (await replica.is('master')) await replica.admin.replicaof('127.0.0.1', this.port);
    await eventually(
      async () => (await this.admin.info('replication')).includes(`port=${replica.port},state=online`),
      FAILOVER_WITHIN,
    );
    // What it was sent as a whole is on disk only when that is rewritten.
    await eventually(async () => {
      const has = await replica.admin.info('persistence');
      const isRewriting = /aof_rewrite_(in_progress|scheduled):1/.test(has);
      return !isRewriting && has.includes('aof_enabled:1') && has.includes('aof_last_bgrewrite_status:ok');
    }, FAILOVER_WITHIN);
  }

  async stop(): Promise<void> {
    this.admin.disconnect();
    await this.#server.stop();
    await rm(this.#folder, { recursive: true, force: true });
  }
}

function launch(folder: string, port?: number): Promise<ProvidedRedis> {
  const durable = ['--appendonly', 'yes', '--appendfsync', 'always', '--dir', folder];
  const replicated = ['--repl-diskless-sync-delay', '0'];
  return provideRedis({
    private: true,
    arguments: [...durable, ...replicated, '--user', ...FORGER.rules],
    ...(port === undefined ? {} : { machine: { freePort: async () => port } }),
  });
}
