import { describe, expect, it } from '@jest/globals';
import { WaitingLine } from '../../lib/lock/waiting-line.js';

describe('what is known of a line', () => {
  it('does not grow with all who come while a lock is held for long', () => {
    const line = new WaitingLine(async () => undefined);
    line.comesAfter('ours', 'waiter 0');
    for (let i = 1; i < 1_000; i += 1) line.comesAfter(`waiter ${i - 1}`, `waiter ${i}`);
    expect(line.run.length).toBeLessThan(100);
    expect(line.nextOfRun((token) => token === 'waiter 5')).toBe('waiter 5');
  });

  it('is that those come next who came right after each other, and nobody behind another client', () => {
    const line = new WaitingLine(async () => undefined);
    line.comesAfter('ours', 'first');
    line.comesAfter('somebody else', 'third');
    line.comesAfter('first', 'second');
    expect(line.run).toEqual(['first', 'second']);
    expect(line.nextOfRun((token) => token === 'third')).toBeUndefined();
  });
});
