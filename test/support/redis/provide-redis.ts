/**
 * Redis for demo and tests, one piece of code for both: takes the first of these that this machine offers
 *
 *  1. the server named by REDIS_URL,
 *  2. a redis-server or valkey-server on PATH, as a process of its own that ends with this one,
 *  3. a container, where a container runtime answers,
 *  4. the Debian package redis-server, where we are root, then as 2.
 */
import { installRedisPackage, whyNotInstallable } from './debian-package.js';
import { findOnPath } from './find-on-path.js';
import { thisMachine, type Machine } from './machine.js';
import { startRedisContainer } from './redis-container.js';
import { useRedisAtUrl } from './redis-at-url.js';
import { startRedisProcess } from './redis-process.js';

export interface ProvidedRedis {
  readonly url: string;
  readonly source: 'url' | 'binary' | 'container' | 'installed';
  /** The server's own process, where it is a child of ours. */
  readonly pid?: number;
  /** Ends what was started for this Redis, and resolves when it has ended. A second call changes nothing. */
  stop(): Promise<void>;
}

export interface ProvideRedisOptions {
  /** Where PATH and REDIS_URL are looked up. Default: process.env. */
  environment?: NodeJS.ProcessEnv;
  /** Told what is being tried and why something is passed over. Default: writes a line to stderr. */
  say?: (line: string) => void;
  /** The caller wants a server of its own, to reconfigure or break: REDIS_URL is not looked at. */
  private?: boolean;
  /** Path of a configuration for a server that is started here, which it may rewrite. */
  configFile?: string;
  /** Further arguments for a server that is started here. */
  arguments?: readonly string[];
  /** Milliseconds within which the server must answer PING. Default: 10 s. */
  within?: number;
  /** Other answers than this machine's own, for tests of a branch that this machine does not take. */
  machine?: Partial<Machine>;
}

const BINARIES = ['redis-server', 'valkey-server'];

export async function provideRedis(options: ProvideRedisOptions = {}): Promise<ProvidedRedis> {
  const environment = options.environment ?? process.env;
  const say = options.say ?? ((line: string) => void process.stderr.write(`${line}\n`));
  const machine = { ...thisMachine(), ...options.machine };
  const start = {
    environment,
    say,
    machine,
    configFile: options.configFile === undefined ? [] : [options.configFile],
    arguments: options.arguments ?? [],
    within: options.within ?? 10_000,
  };

  if (environment.REDIS_URL && !options.private) {
    return useRedisAtUrl(environment.REDIS_URL, start.within);
  }

  const binary = findOnPath(BINARIES, environment);
  if (binary) return { source: 'binary', ...(await startRedisProcess(binary, start)) };
  say('Redis: neither redis-server nor valkey-server is on PATH; looking for a container runtime');

  const container = await startRedisContainer(start);
  if (container) return { source: 'container', ...container };

  const obstacle = whyNotInstallable(start);
  if (obstacle) {
    say(`Redis: not installing a package either: ${obstacle}`);
    throw new Error(everyWay(options.private === true));
  }
  await installRedisPackage(start);
  const installed = findOnPath(BINARIES, environment);
  if (!installed) throw new Error('The package redis-server is installed, but no redis-server is on PATH.');
  return { source: 'installed', ...(await startRedisProcess(installed, start)) };
}

function everyWay(isPrivate: boolean): string {
  const ways = [
    // Of no help to a caller who wants a server of its own.
    ...(isPrivate ? [] : ['set REDIS_URL to the redis:// or rediss:// URL of a server that answers']),
    'put redis-server or valkey-server on PATH',
    'have a container runtime that answers',
    'on Debian or a derivative run as root, so that the package redis-server can be installed',
  ];
  return ['There is no Redis to use. Any one of these is enough:', ...ways.map((way) => `  - ${way}`)].join(
    '\n',
  );
}
