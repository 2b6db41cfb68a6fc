import { describe, expect, it } from '@jest/globals';
import fc from 'fast-check';
import { compileKey } from '../../lib/execution/lock-key.js';
import { ResourceKeys } from '../../lib/redis/lock-keys.js';

/** Anything a value may be, and much that is odd: lone surrogates, separators, percent signs. */
const value = fc.oneof(
  fc.string({ minLength: 1, maxLength: 8, unit: 'binary' }),
  fc.string({
    minLength: 1,
    maxLength: 8,
    unit: fc.constantFrom(':', '%', '{', '}', '<', '>', ' ', '-', 'a', '3', 'A', '\ud800', '\udfff', '\n'),
  }),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.bigInt(),
  fc.boolean(),
);
const separator = fc
  .string({
    minLength: 1,
    maxLength: 3,
    unit: fc.constantFrom(':', '-', '/', 'a', '3', '%', ' ', 'é', '😀'),
  })
  .filter((text) => !text.startsWith('%')); // which is refused
const template = fc
  .array(separator, { minLength: 1, maxLength: 3 })
  .map((separators) => separators.reduce((text, each, i) => `${text}${each}<${i + 1}>`, 'k:<0>'));
const compiled = (text: string) => compileKey(text, 'm', (_name, position) => position ?? 'not asked');

/** 1 and '1' are one key, by contract, and so are -0 and 0. */
const asText = (values: readonly unknown[]) => JSON.stringify(values.map(String));

describe('keys made of any values', () => {
  it('two different lists of values never make the same resource', () => {
    const lists = fc.tuple(
      template,
      fc.array(value, { minLength: 4, maxLength: 4 }),
      fc.array(value, { minLength: 4, maxLength: 4 }),
    );
    fc.assert(
      fc.property(lists, ([text, first, second]) => {
        const count = text.split('<').length - 1;
        const [a, b] = [first.slice(0, count), second.slice(0, count)];
        fc.pre(asText(a) !== asText(b));
        expect(compiled(text)(a)).not.toBe(compiled(text)(b));
      }),
      { numRuns: 3_000 },
    );
  });

  it('values that differ by where one ends and the next begins never make the same resource', () => {
    fc.assert(
      fc.property(
        separator,
        fc.string({ minLength: 2, maxLength: 6, unit: fc.constantFrom(':', '-', '/', 'a', '%', '3', 'é') }),
        fc.nat(),
        fc.nat(),
        (between, joined, at, other) => {
          const cut = (where: number) => {
            const i = 1 + (where % (joined.length - 1));
            return [joined.slice(0, i), joined.slice(i)];
          };
          const [a, b] = [cut(at), cut(other)];
          fc.pre(asText(a) !== asText(b));
          const key = compiled(`k:<0>${between}<1>`);
          expect(key(a)).not.toBe(key(b));
          // Also when one of them contains the separator itself.
          const [x = '', y = ''] = a;
          expect(key([`${x}${between}${y}`, 'z'])).not.toBe(key([x, `${y}${between}z`]));
        },
      ),
      { numRuns: 3_000 },
    );
  });

  it('a key never leaves its hash tag, whatever the values', () => {
    fc.assert(
      fc.property(value, value, (first, second) => {
        const resource = compiled('k:<0>:<1>')([first, second]) as string;
        for (const { owner, queue, fence } of [new ResourceKeys('lock', resource)]) {
          for (const key of [owner, queue, fence]) {
            const tag = /\{([^}]*)\}/.exec(key)?.[1];
            expect(key.endsWith(`{${tag}}`)).toBe(true);
            expect(key.match(/[{}]/g)).toEqual(['{', '}']);
            expect(tag).toBe(resource);
          }
        }
      }),
      { numRuns: 2_000 },
    );
  });

  it('names of any length have keys of bounded length, and never one that another name has', () => {
    const name = fc
      .string({ minLength: 1, maxLength: 700, unit: 'grapheme' })
      .filter((text) => !/[{}]/.test(text));
    fc.assert(
      fc.property(name, name, fc.nat({ max: 600 }), (first, second, length) => {
        const [a, b] = [`${'x'.repeat(length)}${first}`, `${'x'.repeat(length)}${second}`];
        const keys = [new ResourceKeys('lock', a).owner, new ResourceKeys('lock', b).owner] as const;
        for (const key of keys) expect(Buffer.byteLength(key)).toBeLessThan(560);
        expect(keys[0] === keys[1]).toBe(a === b);
        // The key of a long name is the key of no short one.
        const shown = keys[0].slice('lock:{'.length, -1);
        if (shown !== a) expect(new ResourceKeys('lock', shown).owner).not.toBe(keys[0]);
      }),
      { numRuns: 1_000 },
    );
  });
});
