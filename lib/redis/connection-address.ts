/** What a user name or a password may not hold as it is, or a URL ends too early. */
const ENCODED = 'whose user name and password are percent-encoded';

/**
 * What is wrong with where Redis is said to be: nothing of it is shown, for it may hold a password. ioredis takes more
 * than this, and what it misreads it shows in its errors.
 */
export function wrongAddress(connection: string | object): string | undefined {
  if (typeof connection === 'string') return wrongUrl(connection);
  const { host, path, sentinels, nodes } = connection as Readonly<Record<string, unknown>>;
  for (const node of Array.isArray(nodes) ? (nodes as unknown[]) : []) {
    const wrong = typeof node === 'string' ? wrongUrl(node) : wrongHost(hostIn(node));
    if (wrong) return `given "nodes", each of which is ${wrong}`;
  }
  for (const sentinel of Array.isArray(sentinels) ? (sentinels as unknown[]) : []) {
    const wrong = wrongHost(hostIn(sentinel));
    if (wrong) return `given "sentinels", each of which is ${wrong}`;
  }
  if (wrongHost(host)) return `given a "host" that is ${wrongHost(host)}`;
  if (typeof path === 'string' && path.includes('://')) {
    return 'given a "path" that is the path of a socket; a URL is given in place of the options';
  }
  return undefined;
}

/** By the letter, for ioredis would connect without TLS to `REDISS://`, and to a path where it knows no scheme. */
function wrongUrl(text: string): string | undefined {
  if (/^\/[^/]/.test(text)) return undefined; // a socket
  const needs = `a URL that begins with redis:// or rediss://, ${ENCODED}, or the absolute path of a socket`;
  if (!/^rediss?:\/\//.test(text) || !URL.canParse(text)) return needs;
  const { hostname, pathname, search, hash, username, password } = new URL(text);
  const isWhole = hostname !== '' && /^(\/\d*)?$/.test(pathname) && hash === '' && !search.includes('@');
  return isWhole && isDecodable(username) && isDecodable(password) ? undefined : needs;
}

function isDecodable(text: string): boolean {
  try {
    decodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}

function hostIn(node: unknown): unknown {
  return typeof node === 'object' && node !== null ? (node as { host?: unknown }).host : undefined;
}

function wrongHost(host: unknown): string | undefined {
  return typeof host === 'string' && /[/@\s]/.test(host)
    ? 'the name or address of a host, without a scheme, a user or a port'
    : undefined;
}
