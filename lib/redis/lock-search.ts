import { nameInKeys, ResourceKeys } from './lock-keys.js';
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
  const name = /[\\*?[\]]/.test(match) ? match : nameInKeys(match);
  const seen = new Set<string>();
  for (const server of await servers.all()) {
    // Without a slot the resource is the hash tag, with one it stands behind it.
    for (const pattern of [`${literally(start)}{${name}}`, `${literally(start)}{*}:${name}`]) {
      let cursor = '0';
      do {
        const [next, found] = await server.scan(cursor, pattern, STEP);
        cursor = next;
        const locks: ResourceKeys[] = [];
        for (const key of found) {
          const [, tag = '', behind] = /^\{([^{}]*)\}(?::([^{}]*))?$/.exec(key.slice(start.length)) ?? [];
          if (tag === '' || behind === '' || seen.has(key)) continue;
          seen.add(key);
          const resource = behind ?? tag;
          // Its name is the one that the key has: that of a long one is a hash already.
          locks.push(new ResourceKeys(prefix, resource, behind === undefined ? undefined : tag, resource));
        }
        if (locks.length > 0) yield locks;
      } while (cursor !== '0');
    }
  }
}

/** For use within a pattern of Redis. */
function literally(text: string): string {
  return text.replace(/[\\*?[\]]/g, '\\$&');
}
