import { Socket } from 'node:net';
import { types } from 'node:util';
import type { Redis, RedisOptions } from 'ioredis';
import { DeadlineError, within } from './deadline.js';

/** What Redis is to be given by a connection; no `username` means Redis' default user. */
export interface RedisCredentials {
  readonly username?: string | undefined;
  readonly password?: string | undefined;
}

/** Asked before each attempt to connect. */
export type CredentialsFunction = () => RedisCredentials | Promise<RedisCredentials>;

/** What ioredis connects by, and what it will authenticate with: in versions 5 and 6 read after the connector is done. */
interface Internals {
  readonly connector: {
    connecting: boolean;
    firstError?: Error | undefined;
    connect(emit: (type: string, error: Error) => void): Promise<unknown>;
  };
  readonly condition: { auth?: string | readonly (string | undefined)[] | undefined };
}

/** What ioredis says, to nobody, when it was disconnected before there was a socket. */
const CLOSED = 'Connection is closed.';

/** Has a connection authenticate as the options say at the time when it connects, each time it does. */
export function authenticateLike(redis: Redis, optionsNow: () => RedisOptions): Redis {
  for (const name of ['username', 'password'] as const) {
    Object.defineProperty(redis.options, name, {
      get: () => optionsNow()[name],
      enumerable: true,
      configurable: true,
    });
  }
  return redis;
}

/**
 * Has a connection, and those that are made from it, authenticate with what the function answers, each time they connect.
 * An attempt for which it fails, or takes too long, fails with that error.
 *
 * @param redis not connecting yet
 * @param timeout ms the function may take
 */
export function authenticateBy(redis: Redis, credentials: CredentialsFunction, timeout: number): Redis {
  const internals = redis as unknown as Internals;
  const { connector } = internals;
  const connect = connector.connect.bind(connector);
  const duplicate = redis.duplicate.bind(redis);
  redis.duplicate = (options) => authenticateBy(duplicate(options), credentials, timeout);
  connector.connect = async (emit) => {
    connector.connecting = true;
    try {
      const { username, password } = await ask(credentials, timeout);
      Object.assign(redis.options, { username, password });
      internals.condition.auth = username ? [username, password] : password;
      connector.firstError = undefined;
    } catch (error) {
      connector.firstError = error as Error;
      return new Socket().destroy(); // which ioredis takes for an attempt that failed with that error
    }
    if (!connector.connecting) throw new Error(CLOSED); // disconnected meanwhile
    return connect(emit);
  };
  return redis;
}

async function ask(credentials: CredentialsFunction, timeout: number): Promise<RedisCredentials> {
  const asked = new Promise<RedisCredentials>((resolve) => resolve(credentials()));
  const answer: unknown = await within(timeout, asked).catch((error: unknown) => {
    if (error instanceof DeadlineError) {
      throw new Error(`The function in option "credentials" gave no answer within ${timeout} ms`);
    }
    throw types.isNativeError(error)
      ? error
      : new Error('The function in option "credentials" threw what is no Error');
  });
  if (typeof answer === 'object' && answer !== null) return answer;
  throw new Error('The function in option "credentials" has to answer { username?, password? }');
}
