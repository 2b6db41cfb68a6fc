import 'reflect-metadata';
import { Injectable } from '@nestjs/common';
import type { CallHandler, ExecutionContext } from '@nestjs/common';
import { describe, expect, it } from '@jest/globals';
import { Observable, Subject, lastValueFrom, of } from 'rxjs';
import {
  LockContext,
  LockInterceptor,
  LockKeyError,
  LockParam,
  LockService,
  RedisLockModule,
  WithLock,
} from '../../lib/index.js';
import { parameterIndex } from '../../lib/execution/method-parameters.js';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import type { LockApplication } from '../support/lock-application.js';
import { sharedRedisUrl } from '../support/redis/test-redis.js';

/** What a locked handler finds in requests that are not HTTP, and on classes of their own kind. */
describe('LockInterceptor', () => {
  const intercept = (
    key: string,
    { locks }: LockApplication,
    context: object,
    handle: () => Observable<unknown>,
  ) => {
    const Interceptor = LockInterceptor(key);
    const instance = new (
      Interceptor as unknown as new (service: LockService) => InstanceType<typeof Interceptor>
    )(locks);
    const execution = {
      getHandler: () => () => undefined,
      getClass: () => class {},
      getArgs: () => [],
      ...context,
    };
    return instance.intercept(
      execution as unknown as ExecutionContext,
      { handle } as CallHandler,
    ) as Observable<unknown>;
  };
  const lockedResources = (one: LockApplication) => () =>
    new Observable<unknown>((subscriber) => {
      subscriber.next(one.context.lock.resources);
      subscriber.complete();
    });

  it.each([
    ['the context itself', { user: { id: 'a' }, req: { headers: {} } }],
    ['its req', { req: { user: { id: 'a' } } }],
    ['its request', { request: { user: { id: 'a' } } }],
  ])('takes <user.x> of GraphQL from %s', async (_, graphql) => {
    await using one = await startLocks();
    const context = { getType: () => 'graphql', getArgByIndex: (n: number) => [{}, {}, graphql][n] };
    const resources = await lastValueFrom(intercept('cart:<user.id>', one, context, lockedResources(one)));
    expect(resources).toEqual(['cart:a']);
  });

  it('takes <user.x> of a WebSocket from its client', async () => {
    await using one = await startLocks();
    const ws = { getData: () => ({}), getClient: () => ({ user: { id: 'a' } }) };
    const context = { getType: () => 'ws', switchToWs: () => ws };
    const resources = await lastValueFrom(intercept('cart:<user.id>', one, context, lockedResources(one)));
    expect(resources).toEqual(['cart:a']);
  });

  it.each([
    ['message', { getType: () => 'rpc', switchToRpc: () => ({ getData: () => ({}) }) }],
    [
      'WebSocket',
      { getType: () => 'ws', switchToWs: () => ({ getData: () => ({}), getClient: () => ({}) }) },
    ],
  ])('refuses a %s that lacks a value with a LockKeyError, which has no HTTP answer', async (_, context) => {
    await using one = await startLocks();
    const call = lastValueFrom(intercept('cart:<data.id>', one, context, () => of(1)));
    await expect(call).rejects.toBeInstanceOf(LockKeyError);
  });

  it('locks a stream of events from its first value to its end, and passes each on at once', async () => {
    await using one = await startLocks();
    const source = new Subject<number>();
    const handler = () => undefined;
    Reflect.defineMetadata('__sse__', true, handler);
    const context = {
      getType: () => 'http',
      switchToHttp: () => ({ getRequest: () => ({}), getResponse: () => ({}) }),
      getHandler: () => handler,
    };
    const seen: unknown[] = [];
    const ended = new Promise<void>((resolve, reject) =>
      intercept('events', one, context, () => source).subscribe({
        next: (value) => seen.push(value),
        error: reject,
        complete: resolve,
      }),
    );
    const isLocked = () => one.redis.exists(`${one.prefix}:{events}`);
    await eventually(() => source.observed);
    source.next(1);
    expect([seen, await isLocked()]).toEqual([[1], 1]);
    source.next(2);
    expect([seen, await isLocked()]).toEqual([[1, 2], 1]);
    source.complete();
    await ended;
    expect(await isLocked()).toBe(0);
  });
});

describe('a class with locked methods', () => {
  it('names the parameters of an override itself, whatever @LockParam says above', () => {
    class Parent {
      async buy(_first: string, @LockParam('id') _second: string): Promise<void> {}
    }
    class Child extends Parent {
      override async buy(id: string, _second: string): Promise<void> {
        void id;
      }
    }
    expect(parameterIndex('id', Child.prototype, 'buy', Child.prototype.buy)).toBe(0);
  });

  it('may use another instance for a method after one that uses the default', async () => {
    @Injectable()
    class Both {
      constructor(readonly context: LockContext) {}
      @WithLock('both')
      async first(): Promise<string> {
        return this.context.lock.token;
      }
      @WithLock('both', { instance: 'second' })
      async second(): Promise<string> {
        return this.context.lock.token;
      }
    }
    await using elsewhere = await startLocks();
    await using one = await startLocks(
      {},
      {
        imports: [
          RedisLockModule.forRoot({
            name: 'second',
            connection: sharedRedisUrl(),
            keyPrefix: elsewhere.prefix,
          }),
        ],
        providers: [Both],
      },
    );
    const held = await elsewhere.locks.acquire('both');
    await expect(one.app.get(Both).second()).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
    expect(await one.app.get(Both).first()).toContain(':');
    await held.release();
    expect((await one.app.get(Both).second()).split(':')[0]).not.toBe(
      (await one.app.get(Both).first()).split(':')[0],
    );
  });
});
