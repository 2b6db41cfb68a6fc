import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The rules for a user of Redis with locks alone that the README names. */
export function rulesOfReadme(where: 'server' | 'cluster' = 'server'): string[] {
  const readme = readFileSync(join(import.meta.dirname, '../../README.md'), 'utf8');
  const [, rules = ''] = /ACL SETUSER locks on >secret ([^`]+)```/s.exec(readme) ?? [];
  const [, ...more] = /nodes of a cluster, also `([^`]+)`, and from Redis 7 on `([^`]+)`/.exec(readme) ?? [];
  const text = where === 'server' ? rules : [rules, ...more].join(' ');
  return text.replaceAll('\\\n', ' ').trim().split(/\s+/);
}
