import { Injectable, StreamableFile } from '@nestjs/common';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Duplex, PassThrough, Readable } from 'node:stream';
import { lastValueFrom, of } from 'rxjs';
import type { Observable } from 'rxjs';
import { LockConfigurationError, LockContext, WithLock } from '../../lib/index.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';

@Injectable()
class Files {
  constructor(private readonly context: LockContext) {}

  @WithLock('file')
  async get(make: () => unknown, key: string): Promise<unknown> {
    this.context.multi.set(key, 'committed');
    return make();
  }

  @WithLock('file', { returns: 'observable' })
  values(make: () => unknown): Observable<unknown> {
    return of(make());
  }
}

const slow = () => new Readable({ read: () => undefined });
function* numbers(): Generator<number> {
  yield 1;
}
async function* slowNumbers(): AsyncGenerator<number> {
  yield 1;
}

const READ_LATER: Record<string, () => unknown> = {
  'a stream': slow,
  'a Duplex': () => new Duplex({ read: () => undefined, write: () => undefined }),
  'a PassThrough': () => new PassThrough(),
  'an old stream': () => ({ readable: true, pipe: () => undefined }),
  'a StreamableFile': () => new StreamableFile(slow()),
  'a web stream': () => new ReadableStream(),
  'a web Response': () => new Response(new ReadableStream()),
  'a Response of another fetch': () => ({ arrayBuffer: () => undefined, body: slow() }),
  'an async iterable': () => slowNumbers(),
  'a generator': () => numbers(),
  'an object with a stream': () => ({ name: 'file', body: slow() }),
  'an object with a StreamableFile': () => ({ file: new StreamableFile(slow()) }),
};
const bytes = new StreamableFile(Buffer.from('bytes'));
const destroyed = slow().destroy();
const VALUES: Record<string, unknown> = {
  'a StreamableFile of bytes': bytes,
  'a stream that has ended': destroyed,
  'a Response without a body': new Response(null),
  'a Buffer': Buffer.from('bytes'),
  'a Map': new Map([[1, 2]]),
  'an array': [1, 2],
  'an object': { rows: [1, 2], total: 2, [Symbol.asyncIterator]: undefined },
  'an object without a prototype': Object.create(null) as unknown,
  'a Date': new Date(),
  'what looks like a body in part': { getStream: () => slow(), pipe: () => undefined },
  null: null,
  undefined: undefined,
};

describe('a result under a lock', () => {
  let one: LockApplication;
  let files: Files;

  beforeAll(async () => {
    one = await startLocks({}, { providers: [Files] });
    files = one.app.get(Files);
  });
  afterAll(() => one.close());

  it.each(Object.keys(READ_LATER))('is refused when it is %s, with nothing committed', async (kind) => {
    const key = one.key(kind);
    const make = READ_LATER[kind] as () => unknown;
    const call = files.get(make, key);
    await expect(call).rejects.toBeInstanceOf(LockConfigurationError);
    await expect(call).rejects.toThrow(
      /Files\.get: it returned an? .*read without its lock\. Read it to its end/,
    );
    await expect(lastValueFrom(files.values(make))).rejects.toBeInstanceOf(LockConfigurationError);
    expect(await one.redis.exists(key, `${one.prefix}:{file}`)).toBe(0);
  });

  it.each(Object.keys(VALUES))('is passed on when it is %s', async (kind) => {
    const value = VALUES[kind];
    expect(await files.get(() => value, one.key('value'))).toBe(value);
    expect(await lastValueFrom(files.values(() => value))).toBe(value);
  });

  it('that was read under the lock is passed on', async () => {
    const result = await files.get(async () => {
      const response = new Response('text');
      const stream = Readable.from(['read']);
      return { text: await response.text(), response, parts: await stream.toArray(), stream };
    }, one.key('read'));
    expect(result).toMatchObject({ text: 'text', parts: ['read'] });
  });

  it('that is refused is let go of: nobody else could', async () => {
    const stream = slow();
    const file = slow();
    let isCancelled = false;
    const web = new ReadableStream({ cancel: () => void (isCancelled = true) });
    for (const result of [stream, new StreamableFile(file), { web }]) {
      await expect(files.get(() => result, one.key('refused'))).rejects.toBeInstanceOf(
        LockConfigurationError,
      );
    }
    expect([stream.destroyed, file.destroyed, isCancelled]).toEqual([true, true, true]);
  });

  it('is not looked through to its end', async () => {
    const many = Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`p${i}`, i]));
    let looked = 0;
    const last = Object.defineProperty(many, 'last', { enumerable: true, get: () => (looked += 1) });
    expect(await files.get(() => last, one.key('many'))).toBe(last);
    expect(looked).toBe(0);
  });
});
