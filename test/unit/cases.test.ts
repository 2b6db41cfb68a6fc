import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from '@jest/globals';

const TESTS = join(import.meta.dirname, '..');

/** What others who lock with Redis, or wrap methods in Nest, ran into: each number is the scenario of a report. */
const CASES = [...Array.from({ length: 35 }, (_, i) => `${i + 1}`), '18b', '18c', '18d'];

describe('the cases from public bug reports', () => {
  const titles = readdirSync(TESTS, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.test.ts'))
    .flatMap((file) => readFileSync(join(TESTS, file), 'utf8').match(/case \d+[a-d]?(?=:)/g) ?? []);
  const tested = new Set(titles.map((title) => title.slice('case '.length)));

  it('have a test each, whose title begins with the number', () => {
    expect(CASES.filter((number) => !tested.has(number))).toEqual([]);
  });
});
