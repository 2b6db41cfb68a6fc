import { Body, Param, Query, createParamDecorator } from '@nestjs/common';
import { describe, expect, it } from '@jest/globals';
import { minifySync } from '@swc/core';
import type { Observable } from 'rxjs';
import { LockConfigurationError, LockParam, WithLock } from '../../lib/index.js';
import type { WithLockDecoratorOptions } from '../../lib/index.js';
import { parameterAt, parameterIndex, readSource } from '../../lib/execution/method-parameters.js';

const Custom = createParamDecorator((_data: string) => 'custom');
const wrap: MethodDecorator = (_target, _key, descriptor) => {
  const original = descriptor.value as unknown as (...args: unknown[]) => unknown;
  descriptor.value = function (this: unknown, ...args: unknown[]) {
    return original.apply(this, args);
  } as never;
};
/** As of a library for JavaScript, which knows what its methods take. */
const fewer: MethodDecorator = (_target, _key, descriptor) => {
  const original = descriptor.value as unknown as (id: string, count: number) => unknown;
  descriptor.value = function (this: unknown, id: string) {
    return original.call(this, id, 1);
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

  it('of one or two letters is not taken from the source, where minifiers put it: @LockParam, Nest and a position give it', () => {
    class Mail {
      async minified(e: string, to: string, id: string, n1: string) {
        return [e, to, id, n1];
      }
      async given(@LockParam('e') first: string, @Param('n1') second: string) {
        return [first, second];
      }
    }
    const index = (method: keyof Mail, name: string) =>
      parameterIndex(name, Mail.prototype, method, Mail.prototype[method]);
    expect(index('minified', 'e')).toMatch(/minifiers.*@LockParam\('e'\), or write <0>/);
    expect(index('minified', 'n1')).toMatch(/minifiers.*@LockParam\('n1'\), or write <3>/);
    expect([index('minified', 'to'), index('minified', 'id')]).toEqual([1, 2]);
    expect([index('given', 'e'), index('given', 'n1')]).toEqual([0, 1]);
  });

  it('of one letter never means another parameter in code that a minifier has made', () => {
    const method = (source: string) =>
      (new Function(`return ${source}`) as () => (...args: never[]) => Promise<unknown>)();
    const written = (second: string) =>
      `async function mail(customer, ${second}) { return [customer, ${second}]; }`;
    const minified = (source: string) =>
      minifySync(`export default ${source}`, { mangle: true, module: true }).code.replace(
        /^export default|;$/g,
        '',
      );
    const firstOf = (source: string) => readSource(method(source))?.names[0] ?? '';
    const letter = firstOf(minified(written('event')));
    expect(firstOf(minified(written(letter)))).toBe(letter); // which was the name of the second one
    for (const source of [written(letter), minified(written(letter))]) {
      const define = () => {
        const mail = method(source);
        const descriptor: TypedPropertyDescriptor<typeof mail> = { value: mail };
        WithLock(`mail:<${letter}>`)(class Mail {}.prototype, 'mail', descriptor);
      };
      expect(define).toThrow(`@LockParam('${letter}')`);
    }
  });

  it('that stands for the rest of the arguments is refused, also by @LockParam: it would be the first of them alone', () => {
    class Rest {
      async all(first: string, ...others: string[]) {
        return [first, others];
      }
      async given(@LockParam('ids') ...ids: string[]) {
        return ids;
      }
      @wrap
      async wrapped(@LockParam('id') _id: string) {}
    }
    const index = (method: keyof Rest, name: string) =>
      parameterIndex(name, Rest.prototype, method, Rest.prototype[method]);
    expect(index('all', 'others')).toMatch(/rest of the arguments.*function of them, or write <1>/);
    expect(index('given', 'ids')).toMatch(/rest of the arguments.*function of them, or write <0>/);
    expect([index('all', 'first'), index('wrapped', 'id')]).toEqual([0, 0]);
  });

  it.each(['', 'a.b', '<a>', '0', 7])('cannot be %p', (name) => {
    expect(() => LockParam(name as string)).toThrow(LockConfigurationError);
  });
});

describe('a position in a template', () => {
  class Positions {
    async none() {}
    async one(_id: string) {}
    async optional(_id: string, _count = 1) {}
    async rest(_id: string, ..._more: string[]) {}
    async hidden(_id: string) {
      return arguments.length;
    }
    async downlevelled() {
      return (async (..._args: string[]) => undefined)(...(arguments as unknown as string[]));
    }
    @wrap
    async wrapped(_id: string) {}
    @fewer
    async fewer(_id: string, _count: number) {}
  }
  const bound = (method: keyof Positions, position: number) =>
    parameterAt(position, Positions.prototype, method, Positions.prototype[method]);

  it.each([
    ['none', 0, 'none'],
    ['one', 3, 'one, <0>'],
    ['optional', 2, '2, from <0> to <1>'],
    ['fewer', 2, '2, from <0> to <1>'],
  ] as const)(
    'of %s: <%i> is refused, where its source shows that nothing is there',
    (method, position, has) => {
      expect(bound(method, position)).toBe(`is beyond the parameters of the method, which has ${has}`);
    },
  );

  it.each([
    ['one', 0],
    ['optional', 1],
    ['rest', 7],
    ['hidden', 3],
    ['downlevelled', 1],
    ['wrapped', 1],
    ['fewer', 1],
  ] as const)('of %s: <%i> is taken, where an argument may be', (method, position) => {
    expect(bound(method, position)).toBe(position);
  });

  it('is refused when the class is defined, naming method and placeholder', () => {
    const define = () => {
      class Shop {
        @WithLock('order:<3>')
        async buy(_id: string): Promise<void> {}
      }
      return Shop;
    };
    expect(define).toThrow(/Shop\.buy: placeholder <3> of "order:<3>" is beyond/);
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

  it('a misspelt option, with those that there are', () => {
    const descriptor = { value: async () => 1 } as TypedPropertyDescriptor<() => Promise<number>>;
    const options = { onbusy: 'skip' } as WithLockDecoratorOptions;
    const define = () => WithLock('x', options)(class Shop {}.prototype, 'buy', descriptor);
    expect(define).toThrow(/"onbusy".*there are ttl, wait, .*, onBusy, instance, returns$/);
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
