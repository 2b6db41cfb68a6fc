import { Cluster, Redis } from 'ioredis';
import type { RedisOptions } from 'ioredis';
import type { ResolvedModuleOptions } from '../redis-lock.options.js';
import { authenticateBy } from './credentials.js';
import type { CredentialsFunction } from './credentials.js';
import type { RedisClient } from './redis-client.js';

/** By default ioredis keeps the process alive for 2 s after a disconnect from a server that is not there. */
const OWN_CLIENT = { lazyConnect: true, disconnectTimeout: 0 } as const satisfies RedisOptions;

type Given = Exclude<ResolvedModuleOptions['connection'], RedisClient>;

/**
 * A client for what is given as options or as a URL, which connects at its first command.
 *
 * @param timeout ms the function may take
 */
export function connect(
  given: Given,
  credentials: CredentialsFunction | undefined,
  timeout: number,
): Redis | Cluster {
  const client = open(given);
  const authenticate = (redis: Redis) => void (credentials && authenticateBy(redis, credentials, timeout));
  if (client instanceof Cluster) {
    client.on('+node', (node) => {
      authenticate(node);
      tellErrors(client, node);
    });
  } else authenticate(client);
  return queueAtFirst(client);
}

function open(given: Given): Redis | Cluster {
  if (typeof given === 'string') return new Redis(given, OWN_CLIENT);
  if ('nodes' in given) {
    const { options } = given;
    const { disconnectTimeout, lazyConnect } = OWN_CLIENT;
    const redisOptions = { disconnectTimeout, ...options?.redisOptions, lazyConnect };
    return new Cluster(given.nodes, { ...options, redisOptions, lazyConnect });
  }
  return new Redis({ ...given, ...OWN_CLIENT });
}

/** The first command has to wait for the connection that it brings about, also where commands are not to be queued. */
function queueAtFirst(client: Redis | Cluster): Redis | Cluster {
  const { options } = client;
  if (options.enableOfflineQueue !== false) return client;
  options.enableOfflineQueue = true;
  client.once('ready', () => (options.enableOfflineQueue = false));
  return client;
}

/** A cluster asks for its slots on duplicates of its nodes, whose errors ioredis tells nobody: why they cannot connect. */
function tellErrors(cluster: Cluster, node: Redis): void {
  const duplicate = node.duplicate.bind(node);
  node.duplicate = (options) => {
    const copy = duplicate(options);
    copy.on('error', (error: Error) => cluster.emit('node error', error));
    return copy;
  };
}
