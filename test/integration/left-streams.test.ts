import { Injectable } from '@nestjs/common';
import { describe, expect, it } from '@jest/globals';
import { Observable, firstValueFrom } from 'rxjs';
import { LockContext, LockService, WithLock } from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';

/** Resolved by the tests. */
class Gate {
  open: () => void = () => undefined;
  readonly opened = new Promise<void>((resolve) => (this.open = resolve));
}

const next = { left: new Gate(), done: new Gate(), heard: [] as string[] };

@Injectable()
class Streams {
  constructor(
    private readonly context: LockContext,
    private readonly locks: LockService,
  ) {}

  @WithLock('stream', { returns: 'observable' })
  steps(before: string, after: string): Observable<number> {
    return new Observable<number>((subscriber) => {
      const { multi, afterCommit } = this.context;
      multi.set(before, 1);
      afterCommit(() => void next.heard.push('before'));
      subscriber.next(1);
      const joined = this.locks.withLock('stream', async (inner) => {
        inner.multi.set(after, 1);
        inner.afterCommit(() => void next.heard.push('joined'));
        await next.left.opened;
      });
      void joined.then(() => next.done.open());
      afterCommit(() => void next.heard.push('after'));
    });
  }
}

describe('a stream under a lock that is left after a value', () => {
  it('commits what stood before that value, and nothing that came in since, by joined calls neither', async () => {
    await using one = await startLocks({}, { providers: [Streams] });
    const [before, after] = [one.key('before'), one.key('after')];
    expect(await firstValueFrom(one.app.get(Streams).steps(before, after))).toBe(1);
    next.left.open();
    await next.done.opened;
    await eventually(async () => (await one.redis.exists(`${one.prefix}:{stream}`)) === 0);
    expect(await one.redis.mget(before, after)).toEqual(['1', null]);
    expect(next.heard).toEqual(['before']);
  });
});

describe('a call that goes on after the call which had started it', () => {
  it('takes its own turn, and what it queues is committed or refused, and never lost', async () => {
    await using one = await startLocks();
    const inside: string[] = [];
    let most = 0;
    const enter = async (name: string, gate?: Promise<void>) => {
      inside.push(name);
      most = Math.max(most, inside.length);
      await gate;
      inside.splice(inside.indexOf(name), 1);
    };
    const late = new Gate();
    let started: Promise<void> | undefined;
    await one.locks.withLock('a', async () => {
      await one.locks.withLock('a', async () => {
        started = one.locks.withLock('b', async () => {
          await late.opened; // the call that has started it is over
          await one.locks.withLock('a', async ({ multi }) => {
            await enter('joined');
            multi.set(one.key('joined'), 1);
          });
        });
      });
      const sibling = one.locks.withLock('a', () => enter('sibling', eventuallyPassed()));
      late.open();
      await sibling;
    });
    await started;
    expect([most, await one.redis.get(one.key('joined'))]).toEqual([1, '1']);
  });
});

/** After whatever could have begun at once has begun. */
async function eventuallyPassed(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}
