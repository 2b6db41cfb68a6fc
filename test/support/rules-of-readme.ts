import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const readme = readFileSync(join(import.meta.dirname, '../../README.md'), 'utf8');

/** What the README has an administrator paste into redis-cli, line by line, so that a user has the rights for locks alone. */
export function linesOfReadme(): string[] {
  const [, block = ''] = /```\n(ACL SETUSER locks [^`]+)```/.exec(readme) ?? [];
  return block.trim().split('\n');
}

/** The rules in those lines, and those for the nodes of a cluster. */
export function rulesOfReadme(where: 'server' | 'cluster' = 'server'): string[] {
  const rules = linesOfReadme().map((line) =>
    line.replace('ACL SETUSER locks on >secret', '').replace('ACL SETUSER locks', ''),
  );
  const [, ...more] = /nodes of a cluster, also `([^`]+)`, and from Redis 7 on `([^`]+)`/.exec(readme) ?? [];
  return (where === 'server' ? rules : [...rules, ...more]).join(' ').trim().split(/\s+/);
}
