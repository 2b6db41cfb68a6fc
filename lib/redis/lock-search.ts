import { ResourceKeys } from './lock-keys.js';
import type { Servers } from './servers.js';

/** Keys that Redis looks at in one step. */
const STEP = 500;

/**
 * The keys of all locks whose resource matches, page by page, each once.
 *
 * @param clientPrefix which ioredis puts before every key, but neither before a pattern nor takes off from what is found
 */
export async function* findLocks(
  servers: Servers,
  clientPrefix: string,
  prefix: string,
  match: string,
): AsyncGenerator<ResourceKeys[]> {
  const start = `${clientPrefix}${prefix}:`;
  const seen = new Set<string>();
  for (const server of await servers.all()) {
    // Without a slot the resource is the hash tag, with one it stands behind it.
    for (const pattern of [`${literally(start)}{${match}}`, `${literally(start)}{*}:${match}`]) {
      let cursor = '0';
      do {
        const [next, names] = await server.scan(cursor, pattern, STEP);
        cursor = next;
        const found: ResourceKeys[] = [];
        for (const name of names) {
          const [, tag = '', resource] = /^\{([^{}]*)\}(?::(.*))?$/s.exec(name.slice(start.length)) ?? [];
          if (tag === '' || seen.has(name)) continue;
          seen.add(name);
          found.push(
            resource === undefined ? new ResourceKeys(prefix, tag) : new ResourceKeys(prefix, resource, tag),
          );
        }
        if (found.length > 0) yield found;
      } while (cursor !== '0');
    }
  }
}

/** For use within a pattern of Redis. */
function literally(text: string): string {
  return text.replace(/[\\*?[\]]/g, '\\$&');
}
