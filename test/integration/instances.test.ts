import { Injectable, Module, Scope } from '@nestjs/common';
import { ContextIdFactory, LazyModuleLoader, ModuleRef } from '@nestjs/core';
import { describe, expect, it } from '@jest/globals';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  LockConfigurationError,
  LockContext,
  LockService,
  RedisLockModule,
  WithLock,
} from '../../lib/index.js';
import { eventually } from '../support/eventually.js';
import { assertNothingLeft, startLocks } from '../support/lock-application.js';
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
        ],
      },
    );
    for (const token of ['value', 'factory']) {
      const instance = one.app.get<Plain>(token);
      instance.context = one.context;
      expect(await instance.token()).toContain(':');
    }
    await one.close();
    await expect(value.token()).rejects.toMatchObject({ reason: 'shutdown' });
  });

  it('case 8: that nobody could give a lock service says so, and what to do', async () => {
    const useFactory = () => new Plain();
    class Lazy {}
    Module({ providers: [{ provide: 'lazy', useFactory }] })(Lazy);
    const one = await startLocks(
      {},
      {
        providers: [
          { provide: 'request', scope: Scope.REQUEST, useFactory },
          { provide: 'transient', scope: Scope.TRANSIENT, useFactory },
          { provide: 'frozen', useValue: Object.freeze(new Plain()) },
        ],
      },
    );
    const lazy = await one.app.get(LazyModuleLoader).load(() => Lazy);
    const unbound = {
      request: await one.app.resolve<Plain>('request', ContextIdFactory.create()),
      transient: await one.app.resolve<Plain>('transient'),
      lazily: lazy.get<Plain>('lazy'),
      frozen: one.app.get<Plain>('frozen'),
      'by hand': new Plain(),
    };
    for (const [why, instance] of Object.entries(unbound)) {
      await expect(instance.token()).rejects.toBeInstanceOf(LockConfigurationError);
      await expect(instance.token()).rejects.toThrow(
        new RegExp(`@WithLock on Plain\\.token: .* ${why}.*moduleRef\\.create`, 'is'),
      );
    }
    const { token } = new Plain();
    await expect(token.call(undefined as never)).rejects.toThrow(/called without its instance/);
    await one.close();
  });

  it('case 8: that a factory of REQUEST scope has Nest make is locked, also in a module that is loaded lazily', async () => {
    const viaNest = {
      inject: [ModuleRef],
      useFactory: (moduleRef: ModuleRef) => moduleRef.create(Base),
    };
    class Lazy {}
    Module({ providers: [{ provide: 'lazy', ...viaNest }] })(Lazy);
    const one = await startLocks(
      {},
      { providers: [{ provide: 'request', scope: Scope.REQUEST, ...viaNest }] },
    );
    const request = await one.app.resolve<Base>('request', ContextIdFactory.create());
    expect(await request.locked()).toContain(':');
    const lazy = await one.app.get(LazyModuleLoader).load(() => Lazy);
    expect(await lazy.get<Base>('lazy').locked()).toContain(':');
    await one.close();
  });

  it('that throws for names it does not know does not end the boot', async () => {
    // As stand-ins in tests do. Nest itself asks for `then`, its hooks, the constructor and the prototype.
    const refuse = (what: string) => () => {
      throw new Error(`nobody expects ${what}`);
    };
    const useValue = new Proxy(new Plain(), {
      get: (_target, name) => {
        if (name === 'constructor') return Plain;
        return /^(then|on[A-Z]|before[A-Z])/.test(String(name)) ? undefined : refuse(`get ${String(name)}`)();
      },
      has: refuse('has'),
      getOwnPropertyDescriptor: refuse('getOwnPropertyDescriptor'),
      defineProperty: refuse('defineProperty'),
      isExtensible: refuse('isExtensible'),
    });
    const one = await startLocks({}, { providers: [{ provide: 'stand-in', useValue }] });
    expect(await one.locks.withLock('x', () => 'booted')).toBe('booted');
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

  it('made by useValue has both services when its methods want two', async () => {
    class Two {
      @WithLock('a')
      async first(): Promise<string> {
        return 'first';
      }

      @WithLock('a', { instance: 'second' })
      async second(): Promise<string> {
        return 'second';
      }
    }
    const keyPrefix = `instances-${process.pid}-second`;
    const one = await startLocks(
      {},
      {
        imports: [RedisLockModule.forRoot({ name: 'second', connection: sharedRedisUrl(), keyPrefix })],
        providers: [{ provide: 'two', useValue: new Two() }],
      },
    );
    const two = one.app.get<Two>('two');
    await using lock = await one.locks.acquire('a');
    await expect(two.first()).rejects.toMatchObject({ reason: 'busy' });
    expect(await two.second()).toBe('second');
    await lock.release();
    expect(await two.first()).toBe('first');
    await assertNothingLeft(one.redis, keyPrefix);
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

  it('keeps no lock service alive that has closed', async () => {
    const shared = new Plain();
    const closed: WeakRef<LockService>[] = [];
    for (let i = 0; i < 5; i += 1) {
      closed.push(await useAndClose(shared));
    }
    const collect = garbageCollector();
    await eventually(() => {
      collect();
      return closed.every((service) => service.deref() === undefined);
    });
  });
});

/** In a function of its own: what it has on its stack lives as long as it runs. */
async function useAndClose(shared: Plain): Promise<WeakRef<LockService>> {
  const one = await startLocks({}, { providers: [{ provide: 'shared', useValue: shared }] });
  shared.context = one.context;
  await shared.token();
  shared.context = undefined;
  const service = new WeakRef(one.locks);
  await one.close();
  return service;
}

function garbageCollector(): () => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc') as () => void;
}
