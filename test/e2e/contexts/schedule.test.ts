import { Injectable } from '@nestjs/common';
import { Cron, CronExpression, Interval, ScheduleModule, SchedulerRegistry, Timeout } from '@nestjs/schedule';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { LockContext, WithLock } from '../../../lib/index.js';
import { eventually } from '../../support/eventually.js';
import { closeAll, startLocks } from '../../support/lock-application.js';
import type { LockApplication } from '../../support/lock-application.js';

const prefix = `test-schedule-${process.pid}`;
const ran = `${prefix}:data:ran`;
const ONCE_A_YEAR = CronExpression.EVERY_YEAR;

/** Notes what ran, and whether its lock was held, in the commit of the lock. */
async function note(context: LockContext): Promise<void> {
  const [resource = ''] = context.lock.resources;
  const held = await context.redis.exists(`${prefix}:{${resource}}`);
  context.multi.rpush(ran, `${held ? 'under' : 'without'} ${resource}`);
}

@Injectable()
class Jobs {
  constructor(private readonly context: LockContext) {}

  @WithLock('cron-above')
  @Cron(ONCE_A_YEAR, { name: 'above', waitForCompletion: true })
  async cronAbove(): Promise<void> {
    await note(this.context);
  }

  @Cron(ONCE_A_YEAR, { name: 'below', waitForCompletion: true })
  @WithLock('cron-below')
  async cronBelow(): Promise<void> {
    await note(this.context);
  }

  @WithLock('timeout-above')
  @Timeout(1)
  async timeoutAbove(): Promise<void> {
    await note(this.context);
  }

  @Timeout(1)
  @WithLock('timeout-below')
  async timeoutBelow(): Promise<void> {
    await note(this.context);
  }
}

@Injectable()
class Intervals {
  constructor(private readonly context: LockContext) {}

  @WithLock('interval-above', { onBusy: 'skip' })
  @Interval('above', 10)
  async above(): Promise<void> {
    await note(this.context);
  }

  @Interval('below', 10)
  @WithLock('interval-below', { onBusy: 'skip' })
  async below(): Promise<void> {
    await note(this.context);
  }
}

@Injectable()
class NightlyReport {
  constructor(private readonly context: LockContext) {}

  @Cron(ONCE_A_YEAR, { name: 'report', waitForCompletion: true })
  @WithLock('report', { onBusy: 'skip', minHold: 700 })
  async report(): Promise<void> {
    await note(this.context);
  }

  @Cron(ONCE_A_YEAR, { name: 'unguarded', waitForCompletion: true })
  @WithLock('unguarded', { onBusy: 'skip' })
  async unguarded(): Promise<void> {
    await note(this.context);
  }
}

describe('a locked method on a schedule', () => {
  let one: LockApplication;

  beforeEach(async () => {
    one = await startLocks(
      { keyPrefix: prefix },
      { imports: [ScheduleModule.forRoot()], providers: [Jobs, Intervals] },
    );
    await one.app.init();
  });
  afterEach(() => one.close());

  const whatRan = async (name: string) =>
    (await one.redis.lrange(ran, 0, -1)).filter((line) => line.endsWith(` ${name}`));

  it.each(['above', 'below'])('case 3: @Cron fires once and locked, with @WithLock %s it', async (order) => {
    await tick(one, order);
    expect(await whatRan(`cron-${order}`)).toEqual([`under cron-${order}`]);
  });

  it.each(['above', 'below'])(
    'case 3: @Timeout fires once and locked, with @WithLock %s it',
    async (order) => {
      await eventually(async () => (await whatRan(`timeout-${order}`)).length > 0);
      expect(await whatRan(`timeout-${order}`)).toEqual([`under timeout-${order}`]);
    },
  );

  it.each(['above', 'below'])(
    'case 3: @Interval is set up once and fires locked, with @WithLock %s it',
    async (order) => {
      await eventually(async () => (await whatRan(`interval-${order}`)).length > 1);
      expect(new Set(await whatRan(`interval-${order}`))).toEqual(new Set([`under interval-${order}`]));
      expect(one.app.get(SchedulerRegistry).getIntervals().toSorted()).toEqual(['above', 'below']);
    },
  );

  it('case 11: the method of a schedule is locked when code calls it', async () => {
    await one.app.get(Jobs).cronAbove();
    expect(await whatRan('cron-above')).toEqual(['under cron-above']);
    await using _lock = await one.locks.acquire('cron-above');
    await expect(one.app.get(Jobs).cronAbove()).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
  });

  it('a busy lock fails one tick, is survived, and the next tick runs', async () => {
    const lock = await one.locks.acquire('cron-below');
    await tick(one, 'below');
    expect(await whatRan('cron-below')).toEqual([]);
    await lock.release();
    await tick(one, 'below');
    expect(await whatRan('cron-below')).toEqual(['under cron-below']);
  });
});

describe('two replicas with the same @Cron job', () => {
  let replicas: [LockApplication, LockApplication];

  beforeEach(async () => {
    const start = () =>
      startLocks({ keyPrefix: prefix }, { imports: [ScheduleModule.forRoot()], providers: [NightlyReport] });
    replicas = [await start(), await start()];
    for (const { app } of replicas) await app.init();
  });
  afterEach(() => closeAll(...replicas));

  const whatRan = () => replicas[0].redis.lrange(ran, 0, -1);

  it('case 34: run a tick once when it comes to both at the same time', async () => {
    await Promise.all(replicas.map((replica) => tick(replica, 'report')));
    expect(await whatRan()).toEqual(['under report']);
    await freed('report');
  });

  it('case 34: run a tick once when it comes to the second after the job of the first is over', async () => {
    const [first, second] = replicas;
    await tick(first, 'report');
    expect(await whatRan()).toEqual(['under report']);
    await tick(second, 'report');
    expect(await whatRan()).toEqual(['under report']);

    await freed('report');
    await tick(second, 'report');
    expect(await whatRan()).toEqual(['under report', 'under report']);
    await freed('report');
  });

  it('case 34: without minHold the second, a little later, would run it again', async () => {
    for (const replica of replicas) await tick(replica, 'unguarded');
    expect(await whatRan()).toEqual(['under unguarded', 'under unguarded']);
  });

  const freed = (resource: string) =>
    eventually(async () => (await replicas[0].redis.exists(`${prefix}:{${resource}}`)) === 0);
});

/** What the clock does; resolves when the job has run, since that waits for completion. */
async function tick({ app }: LockApplication, name: string): Promise<void> {
  await app.get(SchedulerRegistry).getCronJob(name).fireOnTick();
}
