import { describe, expect, it } from '@jest/globals';
import type { LockContext, LockService } from '../../lib/index.js';

/** Checked by the compiler alone: none of these functions is ever called. */
describe('the types of what work is given', () => {
  it('have the commands of ioredis on multi, one after the other, and none that leaves the transaction', () => {
    const compiled = ({ multi }: LockContext) => {
      multi.set('a', 1, 'PX', 10, 'NX').incr('b').hset('h', { a: 1 }).zadd('z', 1, 'm').call('SET', 'c', '2');
      multi.setBuffer('a', Buffer.from('x'), 'GET').get('a');
      // @ts-expect-error a wrong number of arguments
      multi.incr('b').incr();
      // @ts-expect-error it is committed by the library
      multi.exec();
      // @ts-expect-error also behind other commands
      multi.set('a', 1).exec();
      // @ts-expect-error nothing leaves the transaction
      multi.set('a', 1).discard();
      // @ts-expect-error or changes the connection
      multi.select(1);
      // @ts-expect-error or waits
      multi.incr('b').blpop('a', 1);
    };
    expect(compiled).toBeInstanceOf(Function);
  });

  it('do not compile where a queued command is awaited', () => {
    const compiled = async ({ multi, redis }: LockContext) => {
      const read: string | null = await redis.get('a');
      // @ts-expect-error there is no reply yet
      await multi.get('a');
      // @ts-expect-error nor behind others
      await multi.set('a', read ?? '').get('a');
      // @ts-expect-error nor of the queue itself
      await multi;
    };
    expect(compiled).toBeInstanceOf(Function);
  });

  it('have a result for work that returns one, and none for work that returns the queue', () => {
    const compiled = async (locks: LockService) => {
      const result: number = await locks.withLock('a', ({ multi }) => {
        multi.set('a', 1);
        return 42;
      });
      const later: string = await locks.withLock('a', { ttl: 100 }, async () => 'later');
      const nothing: undefined = await locks.withLock('a', ({ multi }) => multi.set('a', 1));
      const anything: { known: boolean } = await locks.withLock('a', () => JSON.parse('{}'));
      const wrapped = <T>(work: () => Promise<T>): Promise<T> => locks.withLock('a', work);
      return [result, later, nothing, anything, wrapped];
    };
    expect(compiled).toBeInstanceOf(Function);
  });
});
