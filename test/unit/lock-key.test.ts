import { describe, expect, it } from '@jest/globals';
import { LockConfigurationError, LockKeyError } from '../../lib/index.js';
import { compileKey } from '../../lib/execution/lock-key.js';
import type { LockKey } from '../../lib/execution/lock-key.js';
import { readSource } from '../../lib/execution/method-parameters.js';

const resource = (key: LockKey, args: readonly unknown[], names: readonly (string | undefined)[] = []) =>
  compileKey(
    key,
    '@WithLock on Shop.buy',
    (name, position) => position ?? (names.includes(name) ? names.indexOf(name) : 'binds to no parameter'),
  )(args);

describe('a key template', () => {
  it('takes values by the name of the parameter, by a path inside of it, and by position', () => {
    expect(resource('order:<id>', ['42'], ['id'])).toBe('order:42');
    expect(resource('a:<dto.customer.id>', [0, { customer: { id: 7 } }], ['x', 'dto'])).toBe('a:7');
    expect(resource('<1.0.name>/<0>', [true, [{ name: 'n' }]])).toBe('n/true');
    expect(resource('plain', [])).toBe('plain');
    expect(resource(['a:<0>', 'b:<1>'], [1, 2n])).toEqual(['a:1', 'b:2']);
  });

  it.each([
    ['a:b', 'a%3Ab'],
    ['a b\n', 'a%20b%0A'],
    ['{x}<y>%', '%7Bx%7D%3Cy%3E%25'],
    ['\u0000\u007f', '%00%7F'],
    ['é/ü?&', 'é/ü?&'],
    ['\ud800', '%ud800'],
  ])('encodes the value %p as %p', (value, encoded) => {
    expect(resource('k:<0>', [value])).toBe(`k:${encoded}`);
  });

  it('case 30: never makes one key of two lists of values', () => {
    const values = [
      'a',
      'a:b',
      'b',
      ':',
      '%3A',
      'a%3Ab',
      '\ud800',
      '\udc00',
      '{',
      '}',
      ' ',
      'x',
      '1',
      'a-b',
      '-',
      'xx',
    ];
    for (const template of ['k:<0>:<1>', 'k:<0>-<1>', '<0>x<1>', '<0>a-<1>', '<0> <1>', '<0>é<1>']) {
      const seen = new Map<unknown, string>();
      for (const first of values) {
        for (const second of values) {
          const key = resource(template, [first, second]);
          expect(seen.get(key)).toBeUndefined();
          seen.set(key, JSON.stringify([first, second]));
        }
      }
    }
    expect(resource('user-<0>', ['a-b'])).toBe('user-a-b'); // nothing to be mixed up with
    expect(() => resource('<0><1>', ['a', 'b'])).toThrow(/between its placeholders/);
    expect(() => resource('<0>%<1>', ['a', 'b'])).toThrow(/encoded characters/);
  });

  it.each([undefined, null, '', NaN, Infinity, {}, [], () => 1, Symbol('s')])(
    'refuses the value %p',
    (value) => {
      expect(() => resource('order:<id>', [value], ['id'])).toThrow(LockKeyError);
      expect(() => resource('order:<id>', [value], ['id'])).toThrow(/Shop\.buy: <id> of "order:<id>"/);
    },
  );

  it('case 30: refuses a path that ends nowhere or in an object', () => {
    expect(() => resource('<user.address.city>', [{ address: {} }], ['user'])).toThrow(LockKeyError);
    expect(() => resource('<user.address>', [{ address: {} }], ['user'])).toThrow(LockKeyError);
    expect(() => resource('<user.address.city>', [null], ['user'])).toThrow(LockKeyError);
  });

  it.each(['order:<ID>', 'order:<id', 'order:id>', 'order:<>', 'order:<id.>', '{<id>}', '', 'a<b<id>>'])(
    'is refused when it is compiled: %p',
    (template) => {
      expect(() => resource(template, ['1'], ['id'])).toThrow(LockConfigurationError);
      expect(() => resource(template, ['1'], ['id'])).toThrow(/Shop\.buy/);
    },
  );

  it('of another kind is refused', () => {
    for (const key of [7, [], undefined, [7], null]) {
      expect(() => resource(key as unknown as LockKey, [])).toThrow(LockConfigurationError);
    }
  });
});

describe('a key function', () => {
  it('gets the arguments and names the resources', () => {
    expect(resource(((a: string, b: number) => [`${a}:${b}`, 'x']) as LockKey, ['k', 1])).toEqual([
      'k:1',
      'x',
    ]);
  });

  it.each([undefined, '', [], {}, 'a{b}'])('that answers %p gives no key', (answer) => {
    expect(() => resource((() => answer) as unknown as LockKey, [])).toThrow(LockKeyError);
  });

  it('that throws is heard itself', () => {
    const own = new Error('mine');
    const key = () => {
      throw own;
    };
    expect(() => resource(key, [])).toThrow(own);
  });
});

describe('names of parameters', () => {
  /* eslint-disable -- odd on purpose */
  class Odd extends Object {
    async plain(a: string, b: number) {
      return [a, b];
    }
    async defaults(a = ')', b = (() => ({ x: ',' }))(), c: string[] = ['}']) {
      return [a, b, c];
    }
    async destructured({ a }: { a: string }, [b]: string[], ...rest: string[]) {
      return [a, b, rest];
    }
    async commented(
      /* x, */ a: string, // y,
      b: string,
    ) {
      return [a, b];
    }
    async 'quoted name'(a: string) {
      return a;
    }
    async [`computed`](a: string) {
      return a;
    }
    async *generator(a: string) {
      yield a;
    }
    #secret = 1;
    async secretive(a: string) {
      return [a, this.#secret, import.meta.url];
    }
    async supper(a: string) {
      return [a, super.toString()];
    }
    arrow = async (a: string, b = '=>') => [a, b];
    single = async (a: string) => a;
    expression = async function named(a: string) {
      return a;
    };
  }
  const odd = new Odd() as unknown as Record<string, (...args: never[]) => unknown>;
  it.each([
    ['plain', ['a', 'b']],
    ['defaults', ['a', 'b', 'c']],
    ['destructured', [undefined, undefined, undefined]],
    ['commented', ['a', 'b']],
    ['quoted name', ['a']],
    ['computed', ['a']],
    ['generator', ['a']],
    ['secretive', ['a']],
    ['supper', ['a']],
    ['arrow', ['a', 'b']],
    ['single', ['a']],
    ['expression', ['a']],
  ])('of %s are %p', (name, names) => {
    expect(readSource(odd[name]!)?.names).toEqual(names);
  });

  it('of a native function are not known', () => {
    expect(readSource(Math.max)).toBeUndefined();
  });
});
