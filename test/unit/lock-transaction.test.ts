import { describe, expect, it } from '@jest/globals';
import { LockTransactionError } from '../../lib/index.js';
import { CommandQueue } from '../../lib/transaction/lock-transaction.js';

const queueOf = () =>
  new CommandQueue(
    {
      knownCommands: new Set(['set', 'setBuffer', 'incr', 'discard', 'select', 'subscribe']),
      slotOf: () => undefined,
    },
    [],
    () => undefined,
  );
type Loose = Record<string, (...args: unknown[]) => unknown>;

describe('commands queued under a lock', () => {
  it('are kept in order, as they were called', () => {
    const queue = queueOf();
    queue.multi.set('a', 1).incr('b').call('SET', 'c', '2');
    queue.multi.setBuffer('d', Buffer.from('x'), 'GET');
    expect(queue.take()).toEqual([
      { method: 'set', args: ['a', 1] },
      { method: 'incr', args: ['b'] },
      { method: 'call', args: ['SET', 'c', '2'] },
      { method: 'setBuffer', args: ['d', Buffer.from('x'), 'GET'] },
    ]);
    expect(queue.take()).toEqual([]);
  });

  // prettier-ignore
  const refused = [
    'EXEC', 'DISCARD', 'MULTI', 'WATCH', 'UNWATCH', 'RESET', 'QUIT', 'SELECT', 'HELLO', 'AUTH', 'CLIENT', 'SCRIPT',
    'MONITOR', 'SUBSCRIBE', 'PSUBSCRIBE', 'SSUBSCRIBE', 'UNSUBSCRIBE', 'BLPOP', 'BLMOVE', 'WAIT', 'CONFIG', 'SHUTDOWN',
  ];
  it.each(refused)('case 18d: refuse %s at once, and the commit even if that is caught', (command) => {
    for (const call of [
      (multi: Loose) => multi[command.toLowerCase()]?.('x'),
      (multi: Loose) => multi['call']?.(command, 'x'),
      (multi: Loose) => multi['call']?.(` ${command.toLowerCase()} `, ['x']),
      (multi: Loose) => multi['callBuffer']?.(command),
      (multi: Loose) => multi[`${command.toLowerCase()}Buffer`]?.('x'),
    ]) {
      const queue = queueOf();
      queue.multi.set('a', 1);
      expect(() => call(queue.multi as unknown as Loose)).toThrow(LockTransactionError);
      queue.multi.set('b', 1);
      expect(() => queue.take()).toThrow(LockTransactionError);
    }
  });

  it.each(['exec', 'execBuffer', 'pipeline', 'addBatch', 'nonsense', 'length', 'sendCommand', '_queue'])(
    'refuse what is no command: %s',
    (name) => {
      const queue = queueOf();
      expect(() => (queue.multi as unknown as Loose)[name]?.()).toThrow(LockTransactionError);
    },
  );

  it('refuse to be awaited, and say where to read', async () => {
    const queue = queueOf();
    const awaited = (async () => await (queue.multi.set('a', 1) as unknown as Promise<unknown>))();
    await expect(awaited).rejects.toMatchObject({
      code: 'LOCK_TRANSACTION_FAILED',
      applied: 'none',
      message: expect.stringContaining('`redis`'),
    });
    expect(() => queue.take()).toThrow(LockTransactionError);
  });

  it('refuse a callback, which would hear QUEUED', () => {
    const queue = queueOf();
    expect(() => queue.multi.set('a', 1, () => undefined)).toThrow(/callback/);
  });

  it('refuse what ioredis could not write, or would write as nonsense', () => {
    for (const arg of [Object.create(null), {}, new Map(), Symbol('s'), () => 1, [{}]]) {
      const queue = queueOf();
      expect(() => (queue.multi as unknown as Loose)['set']?.('a', arg)).toThrow(LockTransactionError);
      expect(() => queue.take()).toThrow(LockTransactionError);
    }
  });

  it('refuse an object or a Map in any place where ioredis would write it as [object Map]', () => {
    const [fields, map] = [{ f: 1 }, new Map([['f', 1]])];
    for (const object of [fields, map]) {
      for (const [command, ...args] of [
        ['HSET', 'k', 'f', object],
        ['HSET', object],
        ['HSET', object, 'f'],
        ['HSET', 'k', [object]],
        ['HMSET', 'k', 'f', object, 'g', 2],
        ['MSET', 'k', object],
        ['MSET', object, object],
        ['MSETNX', 'k', object],
      ] as const) {
        const queue = queueOf();
        const { multi } = queue as unknown as { multi: Loose };
        expect(() => multi['call']?.(command, ...args)).toThrow(/an object is no argument/);
        expect(() => queue.take()).toThrow(LockTransactionError);
      }
    }
    const queue = queueOf();
    const { multi } = queue as unknown as { multi: Loose };
    multi['call']?.('hset', 'k', fields);
    multi['call']?.('mset', map);
    expect(queue.take().map(({ args }) => args)).toEqual([
      ['hset', 'k', map],
      ['mset', map],
    ]);
  });

  it('refuse an instance of a class that has no text of its own, and take one that has', () => {
    class Dto {
      a = 1;
    }
    class Id {
      toString = () => '507f191e';
    }
    for (const arg of [new Dto(), [new Dto()], new ArrayBuffer(2), new Uint8Array(2), Promise.resolve(1)]) {
      const queue = queueOf();
      expect(() => (queue.multi as unknown as Loose)['set']?.('a', arg)).toThrow(LockTransactionError);
      expect(() => queue.take()).toThrow(LockTransactionError);
    }
    const queue = queueOf();
    const date = new Date(0);
    for (const arg of [new Id(), new URL('http://x/'), date, new String('text')])
      (queue.multi as unknown as Loose)['set']?.('a', arg);
    expect(queue.take().map(({ args }) => args[1])).toEqual(['507f191e', 'http://x/', String(date), 'text']);
  });

  it('are taken as they are when they are queued', () => {
    const queue = queueOf();
    const [list, bytes, fields] = [['a', 'b'], Buffer.from('x'), { f: 1 }];
    queue.multi.call('RPUSH', ['k', ...list]).set('b', bytes);
    (queue.multi as unknown as Loose)['call']?.('HSET', 'h', fields);
    list[0] = 'changed';
    bytes[0] = 0;
    fields.f = 2;
    expect(queue.take()).toEqual([
      { method: 'call', args: ['RPUSH', ['k', 'a', 'b']] },
      { method: 'set', args: ['b', Buffer.from('x')] },
      { method: 'call', args: ['HSET', 'h', new Map([['f', 1]])] },
    ]);
  });
});
