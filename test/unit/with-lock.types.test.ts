import { join } from 'node:path';
import { describe, expect, it } from '@jest/globals';
import type { Observable } from 'rxjs';
import ts from 'typescript';
import { WithLock } from '../../lib/index.js';
import type {
  RedisLockModule,
  RedisLockModuleAsyncOptions,
  WithLockDecoratorOptions,
} from '../../lib/index.js';

/** Checked by the compiler: what does not compile is behind an expected error. */
describe('the types of @WithLock', () => {
  it("take onBusy: 'skip' only where the method's type admits that there is no result", () => {
    class Reports {
      @WithLock('a', { onBusy: 'skip' })
      async nothing(): Promise<void> {}

      @WithLock('a', { onBusy: 'skip' })
      async perhaps(): Promise<number | undefined> {
        return 1;
      }

      @WithLock('a', { onBusy: 'skip' })
      async anything(): Promise<unknown> {
        return 1;
      }

      @WithLock('a', { onBusy: 'skip', returns: 'observable' })
      stream(): Observable<number> {
        throw new Error('not called');
      }

      @WithLock('a', { onBusy: 'throw', ttl: 1_000 })
      async always(): Promise<number> {
        return 1;
      }

      // @ts-expect-error a caller would read a number that is not there
      @WithLock('a', { onBusy: 'skip' })
      async total(): Promise<number> {
        return 1;
      }

      // @ts-expect-error the same where it may be
      @WithLock('a', { onBusy: Math.random() < 1 ? 'skip' : 'throw' })
      async sometimes(): Promise<number> {
        return 1;
      }
    }
    expect(Reports).toBeInstanceOf(Function);
  });

  it('give a function of onBusy, and of the key, the parameters of the method', () => {
    class Shop {
      @WithLock((id) => id.toUpperCase(), { onBusy: (id, count) => id.length + count.toFixed().length })
      async buy(_id: string, _count: number) {
        return 1;
      }

      // @ts-expect-error a string has no such thing
      @WithLock('a', { onBusy: (id) => id.toFixed().length })
      async untyped(_id: string): Promise<number> {
        return 1;
      }

      // @ts-expect-error the argument is a string
      @WithLock('a', { onBusy: (id: number) => id })
      async annotated(_id: string): Promise<number> {
        return 1;
      }

      // @ts-expect-error no resource is a number
      @WithLock((id) => id.length)
      async misnamed(_id: string): Promise<number> {
        return 1;
      }
    }
    expect(Shop).toBeInstanceOf(Function);
  });

  it('have the result of onBusy fit that of the method, or be a promise of it, or a stream', () => {
    class Shop {
      @WithLock('a', { onBusy: () => 7 })
      async one(): Promise<number> {
        return 1;
      }

      @WithLock('a', { onBusy: async (id) => id })
      async later(id: string): Promise<string> {
        return id;
      }

      @WithLock('a', { onBusy: (lines) => lines.push('busy') })
      async nobodyLooks(_lines: string[]): Promise<void> {}

      @WithLock('a', { onBusy: (other) => other })
      stream(other: Observable<number>): Observable<number> {
        return other;
      }

      @WithLock('a', { onBusy: () => undefined })
      none(other: Observable<number>): Observable<number> {
        return other;
      }

      // @ts-expect-error a string is no number
      @WithLock('a', { onBusy: () => 'busy' })
      async wrong(): Promise<number> {
        return 1;
      }

      // @ts-expect-error also of a stream
      @WithLock('a', { onBusy: () => 'busy' })
      wrongStream(other: Observable<number>): Observable<number> {
        return other;
      }
    }
    expect(Shop).toBeInstanceOf(Function);
  });

  it('check what was declared apart from the method where it is put to use', () => {
    const skips = WithLock('a', { onBusy: 'skip' });
    const byId = WithLock((id: string) => id, { onBusy: (id: string) => id });
    const options: WithLockDecoratorOptions<'throw'> = { ttl: 1_000 };
    class Shop {
      @skips
      async nothing(): Promise<void> {}

      @byId
      async name(id: string): Promise<string> {
        return id;
      }

      @WithLock('a', options)
      async plain(): Promise<number> {
        return 1;
      }

      // @ts-expect-error undefined is no number
      @skips
      async total(): Promise<number> {
        return 1;
      }

      // @ts-expect-error neither key nor onBusy accept a number
      @byId
      async number(_id: number): Promise<string> {
        return '';
      }

      // @ts-expect-error onBusy answers with a string
      @byId
      async length(id: string): Promise<number> {
        return id.length;
      }
    }
    expect(Shop).toBeInstanceOf(Function);
  });

  it('name the options of forRootAsync', () => {
    const compiled = (module: typeof RedisLockModule) => {
      const options: RedisLockModuleAsyncOptions = { useFactory: () => ({ ttl: 1_000 }), name: 'billing' };
      // @ts-expect-error there is no such option
      const wrong: RedisLockModuleAsyncOptions = { useFactori: () => ({}) };
      return [module.forRootAsync(options), wrong];
    };
    expect(compiled).toBeInstanceOf(Function);
  });

  it('say in plain words what is wrong', () => {
    const messages = messagesOf(`
      import { WithLock } from '../../lib/index.js';
      export class Shop {
        @WithLock('a', { onBusy: 'skip' }) async total(): Promise<number> { return 1; }
        @WithLock('a', { onBusy: () => 'busy' }) async count(): Promise<number> { return 1; }
        @WithLock((id: number) => String(id)) async buy(id: string): Promise<void> { id; }
      }`);
    expect(messages).toHaveLength(3);
    expect(messages[0]).toContain(
      "onBusy: 'skip' yields undefined, and the type of the method has to say so: Promise<.. | undefined>",
    );
    expect(messages[1]).toContain("Type 'string' is not assignable to type 'number | PromiseLike<number>'");
    expect(messages[2]).toContain("Type 'string' is not assignable to type 'number'");
  }, 60_000);
});

/** What the compiler says about a file in this folder. */
function messagesOf(source: string): string[] {
  const file = join(import.meta.dirname, 'in-memory.ts');
  const { config } = ts.readConfigFile(join(import.meta.dirname, '../../tsconfig.json'), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, join(import.meta.dirname, '../..'));
  const host = ts.createCompilerHost(options);
  const { getSourceFile } = host;
  host.getSourceFile = (name, ...rest) =>
    name === file ? ts.createSourceFile(name, source, ts.ScriptTarget.ES2022) : getSourceFile(name, ...rest);
  const program = ts.createProgram([file], { ...options, types: [] }, host);
  const diagnostics = program.getSemanticDiagnostics(program.getSourceFile(file));
  return diagnostics.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, '\n'));
}
