import { BullModule, Processor, WorkerHost, getQueueToken } from '@nestjs/bullmq';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { QueueEvents } from 'bullmq';
import type { Job, Queue } from 'bullmq';
import { LockContext, WithLock } from '../../../lib/index.js';
import { startLocks } from '../../support/lock-application.js';
import type { LockApplication } from '../../support/lock-application.js';
import { sharedRedisUrl } from '../../support/redis/test-redis.js';

const prefix = `test-queue-${process.pid}`;
const ran = `${prefix}:data:ran`;
const queuePrefix = `bull-of-${process.pid}`;

interface Payment {
  id: string;
}

@Processor('payments', { concurrency: 4 })
class PaymentsProcessor extends WorkerHost {
  constructor(private readonly context: LockContext) {
    super();
  }

  @WithLock('payment:<job.data.id>', { wait: 2_000 })
  override async process(job: Job<Payment>): Promise<string> {
    const [resource = ''] = this.context.lock.resources;
    const held = await this.context.redis.exists(`${prefix}:{${resource}}`);
    this.context.multi.rpush(ran, `${job.data.id} ${held ? 'under' : 'without'} ${resource}`);
    return `paid ${job.data.id}`;
  }
}

@Processor('impatient')
class ImpatientProcessor extends WorkerHost {
  constructor(private readonly context: LockContext) {
    super();
  }

  @WithLock('impatient:<job.data.id>')
  override async process(job: Job<Payment>): Promise<void> {
    this.context.multi.rpush(ran, job.data.id);
  }
}

describe('the locked process() of a BullMQ worker', () => {
  let one: LockApplication;
  let queueEvents: QueueEvents[];
  let queues: Record<'payments' | 'impatient', Queue<Payment>>;

  beforeEach(async () => {
    const connection = { url: sharedRedisUrl() };
    one = await startLocks(
      { keyPrefix: prefix },
      {
        imports: [
          BullModule.forRoot({ connection, prefix: queuePrefix }),
          BullModule.registerQueue({ name: 'payments' }, { name: 'impatient' }),
        ],
        providers: [PaymentsProcessor, ImpatientProcessor],
      },
    );
    await one.app.init();
    queues = {
      payments: one.app.get(getQueueToken('payments')),
      impatient: one.app.get(getQueueToken('impatient')),
    };
    queueEvents = ['payments', 'impatient'].map(
      (name) => new QueueEvents(name, { connection, prefix: queuePrefix }),
    );
    await Promise.all(queueEvents.map((each) => each.waitUntilReady()));
  });
  afterEach(async () => {
    for (const processor of [PaymentsProcessor, ImpatientProcessor])
      await one.app.get(processor).worker.close();
    for (const queue of Object.values(queues)) await queue.obliterate({ force: true });
    await Promise.all(queueEvents.map((each) => each.close()));
    const left = await one.redis.keys(`${queuePrefix}:*`);
    if (left.length > 0) await one.redis.del(...left);
    await one.close();
    expect(left).toEqual([]);
  });

  const whatRan = () => one.redis.lrange(ran, 0, -1);
  /** What the one who waits for the job gets: its result, or an error with the reason it failed for. */
  const outcome = (job: Job<Payment>): Promise<unknown> => {
    const events = queueEvents.find(({ name }) => name === job.queueName);
    if (events === undefined) throw new Error(`No events of ${job.queueName}`);
    return job.waitUntilFinished(events, 5_000);
  };

  it('case 3: runs once for each job, locked, and has committed when the job is finished', async () => {
    const job = await queues.payments.add('pay', { id: '7' });
    expect(await outcome(job)).toBe('paid 7');
    expect(await whatRan()).toEqual(['7 under payment:7']);
    expect(await one.redis.exists(`${prefix}:{payment:7}`)).toBe(0);
  });

  it('case 11: two jobs and a call from code on one key come one after the other', async () => {
    const jobs = await queues.payments.addBulk(
      ['8', '8'].map((id) => ({ name: 'pay', data: { id }, opts: {} })),
    );
    const called = one.app.get(PaymentsProcessor).process({ data: { id: '8' } } as Job<Payment>);
    expect(await Promise.all([...jobs.map(outcome), called])).toEqual(['paid 8', 'paid 8', 'paid 8']);
    expect(await whatRan()).toEqual(Array(3).fill('8 under payment:8'));
    expect(await one.redis.hlen(`${prefix}:fence:{payment:8}`)).toBeGreaterThan(0);
  });

  it('case 11: a call from code is refused while the lock is held', async () => {
    await using _lock = await one.locks.acquire('impatient:9');
    const call = one.app.get(ImpatientProcessor).process({ data: { id: '9' } } as Job<Payment>);
    await expect(call).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
    expect(await whatRan()).toEqual([]);
  });

  it('fails a job whose lock is busy, and the next attempt of it goes through', async () => {
    const lock = await one.locks.acquire('impatient:10');
    const job = await queues.impatient.add('once', { id: '10' });
    await expect(outcome(job)).rejects.toThrow(/lock on "impatient:10" was not acquired/);
    expect(await whatRan()).toEqual([]);
    await lock.release();
    await job.retry();
    await outcome(job);
    expect(await whatRan()).toEqual(['10']);
  });
});
