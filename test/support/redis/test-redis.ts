import { provideRedis, type ProvidedRedis } from './provide-redis.js';

/** The one server of the whole test run. Tests share it: each uses keys of its own and reconfigures nothing. */
export function sharedRedisUrl(): string {
  return fromGlobalSetup('TEST_REDIS_URL');
}

/** A server for one test alone, which it may reconfigure, break and must stop. */
export function privateRedis(
  serverArguments: readonly string[] = [],
  configFile?: string,
): Promise<ProvidedRedis> {
  return provideRedis({ private: true, arguments: serverArguments, ...(configFile ? { configFile } : {}) });
}

/** A server in the place of one that was stopped. */
export function privateRedisAt(
  port: number,
  serverArguments: readonly string[] = [],
): Promise<ProvidedRedis> {
  return provideRedis({
    private: true,
    arguments: serverArguments,
    machine: { freePort: async () => port },
  });
}

/** provide-redis as a CommonJS file, for tests that use it in a process of its own. */
export function compiledProvideRedis(): string {
  return fromGlobalSetup('TEST_PROVIDE_REDIS');
}

function fromGlobalSetup(name: string): string {
  const value = process.env[name];
  if (!value)
    throw new Error(`${name} is not set: Jest's global setup (test/support/global-setup.ts) did not run.`);
  return value;
}
