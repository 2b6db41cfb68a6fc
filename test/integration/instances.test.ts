import { Injectable, Module, Scope } from '@nestjs/common';
import { ContextIdFactory } from '@nestjs/core';
import { describe, expect, it } from '@jest/globals';
import { LockConfigurationError, LockContext, RedisLockModule, WithLock } from '../../lib/index.js';
import { startLocks } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

class Plain {
  context: LockContext | undefined;

  @WithLock('plain')
  async token(): Promise<string | undefined> {
    return this.context?.lock.token;
  }
}
class PlainChild extends Plain {}

@Injectable()
class Base {
  constructor(protected readonly context: LockContext) {}

  @WithLock('base')
  async locked(): Promise<string> {
    return this.context.lock.token;
  }
}

@Injectable()
class OnInit extends Base {
  token = '';

  async onModuleInit(): Promise<void> {
    this.token = await this.locked();
  }
}

@Injectable({ scope: Scope.REQUEST })
class PerRequest {
  constructor(private readonly context: LockContext) {}

  @WithLock('request')
  async locked(): Promise<string> {
    return this.context.lock.token;
  }
}

@Injectable({ scope: Scope.TRANSIENT })
class Transient extends PerRequest {}

@Injectable({ scope: Scope.REQUEST, durable: true })
class Durable extends PerRequest {}

class Overriding extends Base {
  override async locked(): Promise<string> {
    return 'not locked';
  }
}

class Keyed extends Base {
  @WithLock('another')
  override async locked(): Promise<string> {
    return `another, then ${await super.locked()}`;
  }
}

describe('an instance with a locked method', () => {
  it('case 7: has its lock whatever its scope, and in onModuleInit', async () => {
    const one = await startLocks({}, { providers: [OnInit, PerRequest, Transient, Durable] });
    expect(one.app.get(OnInit).token).toContain(':');
    for (const type of [PerRequest, Transient, Durable]) {
      const instance = await one.app.resolve(type, ContextIdFactory.create());
      expect(await instance.locked()).toContain(':');
    }
    await one.close();
  });

  it('case 8: made by useFactory or useValue has it as well', async () => {
    const value = new PlainChild();
    const one = await startLocks(
      {},
      {
        providers: [
          { provide: 'value', useValue: value },
          { provide: 'factory', useFactory: async () => new Plain() },
          { provide: 'late', scope: Scope.REQUEST, useFactory: () => new Plain() },
        ],
      },
    );
    for (const token of ['value', 'factory']) {
      const instance = one.app.get<Plain>(token);
      instance.context = one.context;
      expect(await instance.token()).toContain(':');
    }
    const late = await one.app.resolve<Plain>('late', ContextIdFactory.create());
    await expect(late.token()).rejects.toBeInstanceOf(LockConfigurationError);
    await one.close();
  });

  it('case 8: made by hand is refused, and never runs unlocked', async () => {
    await expect(new Plain().token()).rejects.toBeInstanceOf(LockConfigurationError);
  });

  it('case 4: overridden without a decorator is not locked; with another key has that key, and the parent by super', async () => {
    const one = await startLocks({}, { providers: [Base, Overriding, Keyed] });
    await using _lock = await one.locks.acquire('base');
    expect(await one.app.get(Overriding).locked()).toBe('not locked');
    await expect(one.app.get(Base).locked()).rejects.toMatchObject({ resources: ['base'] });
    await expect(one.app.get(Keyed).locked()).rejects.toMatchObject({ resources: ['base'] });
    await _lock.release();
    expect(await one.app.get(Keyed).locked()).toMatch(/^another, then /);
    await using _other = await one.locks.acquire('another');
    await expect(one.app.get(Keyed).locked()).rejects.toMatchObject({ resources: ['another'] });
    await _other.release();
    await one.close();
  });

  it('may have two locked methods, of two services, and two decorators on one method', async () => {
    @Injectable()
    class Two {
      constructor(readonly context: LockContext) {}

      @WithLock('a')
      @WithLock('b', { instance: 'second' })
      async both(): Promise<readonly string[]> {
        return this.context.lock.resources;
      }

      @WithLock('b', { instance: 'second' })
      async second(): Promise<readonly string[]> {
        return this.context.lock.resources;
      }
    }
    const prefix = `instances-${process.pid}`;
    const Second = RedisLockModule.forRoot({
      name: 'second',
      connection: sharedRedisUrl(),
      keyPrefix: prefix,
    });
    class Other {}
    Module({ imports: [Second] })(Other);
    const one = await startLocks(
      {},
      { imports: [Other], providers: [Two, { provide: 'value', useValue: new Two(null as never) }] },
    );
    const two = one.app.get(Two);
    expect(await two.both()).toEqual(['b']);
    await using _lock = await one.locks.acquire('a');
    await expect(two.both()).rejects.toMatchObject({ resources: ['a'] });
    expect(await two.second()).toEqual(['b']);
    await _lock.release();
    await one.redis.del(`${prefix}:fence:{b}`);
    await one.close();
  });

  it('may be in two applications, and outlives the first of them', async () => {
    const shared = new Plain();
    const providers = [{ provide: 'shared', useValue: shared }];
    const [first, second] = [await startLocks({}, { providers }), await startLocks({}, { providers })];
    shared.context = first.context;
    expect(await shared.token()).toContain(':');
    await first.close();
    shared.context = second.context;
    expect(await shared.token()).toContain(':');
    await second.close();
    const third = await startLocks({}, { providers });
    shared.context = third.context;
    expect(await shared.token()).toContain(':');
    await third.close();
  });

  it('that is frozen is refused when it is called, and not before', async () => {
    const one = await startLocks(
      {},
      { providers: [{ provide: 'frozen', useValue: Object.freeze(new Plain()) }] },
    );
    await expect(one.app.get<Plain>('frozen').token()).rejects.toBeInstanceOf(LockConfigurationError);
    await one.close();
  });
});
