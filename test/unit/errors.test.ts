import { describe, expect, it } from '@jest/globals';
import {
  LockConflictError,
  LockError,
  LockExceptionFilter,
  LockLostError,
  LockNotAcquiredError,
} from '../../lib/index.js';

describe('an error of a second copy of the package', () => {
  it('is an instance of its own class, and of LockError, and of no other', () => {
    const brand = { [Symbol.for('nestjs-redis-lock.error')]: true, code: 'LOCK_LOST' };
    const foreign: unknown = Object.assign(new Error('of another copy'), brand);
    expect(foreign instanceof LockLostError).toBe(true);
    expect(foreign instanceof LockError).toBe(true);
    expect(foreign instanceof LockNotAcquiredError).toBe(false);
    expect(foreign instanceof LockConflictError).toBe(false);
  });

  it('has to have the brand: a code alone makes none', () => {
    const stranger: unknown = Object.assign(new Error('of somebody else'), { code: 'LOCK_LOST' });
    expect(stranger instanceof LockLostError).toBe(false);
  });
});

describe('Retry-After', () => {
  it.each([
    [1, '1'],
    [200, '1'],
    [1_000, '1'],
    [1_001, '2'],
    [59_500, '60'],
  ])('of an error with retryAfter %i is %s: at least a second, and rounded up', (retryAfter, seconds) => {
    const headers: string[][] = [];
    const httpAdapter = {
      setHeader: (_response: unknown, ...header: string[]) => headers.push(header),
      isHeadersSent: () => false,
      reply: () => undefined,
      end: () => undefined,
    };
    const filter = Object.assign(new LockExceptionFilter(), { httpAdapterHost: { httpAdapter } });
    const host = {
      getType: () => 'http',
      switchToHttp: () => ({ getResponse: () => ({}), getRequest: () => ({}) }),
      getArgByIndex: () => ({}),
    };
    filter.catch(new LockNotAcquiredError('busy', { retryAfter }), host as never);
    expect(headers).toEqual([['Retry-After', seconds]]);
  });
});
