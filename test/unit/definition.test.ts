import { Body, Param, Query, createParamDecorator } from '@nestjs/common';
import { describe, expect, it } from '@jest/globals';
import type { Observable } from 'rxjs';
import { LockConfigurationError, LockParam, WithLock } from '../../lib/index.js';
import type { WithLockDecoratorOptions } from '../../lib/index.js';
import { parameterIndex } from '../../lib/execution/method-parameters.js';

const Custom = createParamDecorator((_data: string) => 'custom');
const wrap: MethodDecorator = (_target, _key, descriptor) => {
  const original = descriptor.value as unknown as (...args: unknown[]) => unknown;
  descriptor.value = function (this: unknown, ...args: unknown[]) {
    return original.apply(this, args);
  } as never;
};

class Names {
  async plain(first: string, second: string) {
    return [first, second];
  }
  async given(@LockParam('second') first: string, second: string) {
    return [first, second];
  }
  async routed(@Param('second') first: string, second: string, @Body() third: object) {
    return [first, second, third];
  }
  async twice(@Param('id') first: string, @Query('id') second: string) {
    return [first, second];
  }
  async both(@LockParam('id') first: string, @Param('id') second: string) {
    return [first, second];
  }
  async custom(@Custom('id') first: string, id: string) {
    return [first, id];
  }
  @wrap
  async wrapped(@Param('id') first: string, @LockParam('to') second: string, third: string) {
    return [first, second, third];
  }
}
const bound = (method: keyof Names, name: string) =>
  parameterIndex(name, Names.prototype, method, Names.prototype[method]);

describe('a name in a template', () => {
  it.each([
    ['plain', 'second', 1],
    ['given', 'second', 0],
    ['given', 'first', 0],
    ['routed', 'second', 0],
    ['routed', 'third', 2],
    ['both', 'id', 0],
    ['custom', 'id', 1],
    ['wrapped', 'id', 0],
    ['wrapped', 'to', 1],
  ] as const)('of %s: <%s> is the parameter %i', (method, name, index) => {
    expect(bound(method, name)).toBe(index);
  });

  it('that two decorators give is refused, and so is one that nothing has', () => {
    expect(bound('twice', 'id')).toMatch(/two parameters, by Nest's/);
    expect(bound('wrapped', 'third')).toMatch(/no parameter/);
    expect(bound('plain', 'third')).toMatch(/no parameter/);
  });

  it('is suggested to be given by @LockParam when it binds to nothing', () => {
    const define = () => {
      class Shop {
        @WithLock('order:<id>')
        @wrap
        async buy(_id: string): Promise<void> {}
      }
      return Shop;
    };
    expect(define).toThrow(/Shop\.buy: placeholder <id>.*@LockParam\('id'\).*<0>/);
  });

  it.each(['', 'a.b', '<a>', '0', 7])('cannot be %p', (name) => {
    expect(() => LockParam(name as string)).toThrow(LockConfigurationError);
  });
});

describe('case 6: what cannot be locked is refused when the class is defined', () => {
  it('a generator, an async generator', () => {
    const generators = [
      class {
        *values(): Generator<number> {
          yield 1;
        }
      },
      class {
        async *values(): AsyncGenerator<number> {
          yield 1;
        }
      },
    ];
    for (const { prototype } of generators) {
      const descriptor = Object.getOwnPropertyDescriptor(
        prototype,
        'values',
      ) as TypedPropertyDescriptor<never>;
      expect(() => WithLock('x')(prototype, 'values', descriptor)).toThrow(/generator/);
    }
  });

  it('a method that returns a primitive', () => {
    const define = () => {
      class Sync {
        // @ts-expect-error a method has to return a Promise or an Observable
        @WithLock('x')
        count(): number {
          return 1;
        }
      }
      return Sync;
    };
    expect(define).toThrow(/Sync\.count: it returns a Number/);
  });

  it('a static method, a getter, a property', () => {
    const descriptor = (value: unknown) => ({ value }) as TypedPropertyDescriptor<never>;
    class Shop {
      static async all(): Promise<void> {}
    }
    // @ts-expect-error a static method
    expect(() => WithLock('x')(Shop, 'all', descriptor(Shop.all))).toThrow(
      /Shop\.all: only a method of an instance/,
    );
    expect(() => WithLock('x')(Shop.prototype, 'getter', { get: () => 1 } as never)).toThrow(/only a method/);
    expect(() => WithLock('x')(Shop.prototype, 'property', undefined as never)).toThrow(/only a method/);
  });

  const wrong: [string, unknown][] = [
    ['onBusy', 'ignore'],
    ['returns', 'stream'],
    ['instance', ''],
    ['ttl', 1],
    ['nonsense', 1],
  ];
  it.each(wrong)('a wrong option: %s %p', (name, value) => {
    const descriptor = { value: async () => 1 } as TypedPropertyDescriptor<() => Promise<number>>;
    const options = { [name]: value } as WithLockDecoratorOptions;
    const define = () => WithLock('x', options)(class Shop {}.prototype, 'buy', descriptor);
    expect(define).toThrow(LockConfigurationError);
    expect(define).toThrow(`"${name}"`);
  });

  it('by the types: a key function that does not fit, a misspelt option', () => {
    const define = () => {
      class Typed {
        @WithLock((id: string, count: number) => `${id}:${count}`)
        async fits(_id: string, _count: number, _more: boolean): Promise<void> {}

        @WithLock((id: string) => id)
        stream(_id: string): Observable<number> {
          throw new Error('not called');
        }

        // @ts-expect-error the key function does not accept the arguments of the method
        @WithLock((id: number) => `${id}`)
        async unfit(_id: string): Promise<void> {}
      }
      return Typed;
    };
    expect(define).not.toThrow();
  });
});
