import { Module, UseInterceptors } from '@nestjs/common';
import type { INestApplication } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ApolloServer } from '@apollo/server';
import { ApolloDriver } from '@nestjs/apollo';
import type { ApolloDriverConfig } from '@nestjs/apollo';
import {
  Args,
  Field,
  GraphQLModule,
  ID,
  Mutation,
  ObjectType,
  Parent,
  Query,
  ResolveField,
  Resolver,
} from '@nestjs/graphql';
import { ExpressAdapter } from '@nestjs/platform-express';
import { afterAll, afterEach, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { LockContext, LockInterceptor, LockService, RedisLockModule, WithLock } from '../../../lib/index.js';
import { assertNothingLeft } from '../../support/lock-application.js';
import { sharedRedisUrl } from '../../support/redis/test-redis.js';

const prefix = `test-graphql-${process.pid}`;
const ran = `${prefix}:data:ran`;

@ObjectType()
class Cart {
  @Field(() => ID)
  id!: string;
}

@Resolver(() => Cart)
class CartResolver {
  constructor(private readonly context: LockContext) {}

  @Query(() => Cart)
  cart(@Args('id') id: string): Cart {
    return { id };
  }

  @WithLock('cart:<id>')
  @Query(() => String)
  async queryAbove(@Args('id') cart: string): Promise<string> {
    return this.note(cart);
  }

  @Query(() => String)
  @WithLock('cart:<id>')
  async queryBelow(@Args('id') cart: string): Promise<string> {
    return this.note(cart);
  }

  @WithLock('cart:<id>')
  @Mutation(() => String)
  async mutationAbove(@Args('id') cart: string): Promise<string> {
    return this.note(cart);
  }

  @Mutation(() => String)
  @WithLock('cart:<id>')
  async mutationBelow(@Args('id') cart: string): Promise<string> {
    return this.note(cart);
  }

  @WithLock('cart:<cart.id>')
  @ResolveField(() => String)
  async fieldAbove(@Parent() cart: Cart): Promise<string> {
    return this.note(cart.id);
  }

  @ResolveField(() => String)
  @WithLock('cart:<cart.id>')
  async fieldBelow(@Parent() cart: Cart): Promise<string> {
    return this.note(cart.id);
  }

  @Query(() => String)
  @UseInterceptors(LockInterceptor('cart:<args.id>'))
  async intercepted(@Args('id') cart: string): Promise<string> {
    return this.note(cart);
  }

  private async note(cart: string): Promise<string> {
    const { lock, redis, multi } = this.context;
    const held = await redis.exists(`${prefix}:{${lock.resources[0]}}`);
    multi.rpush(ran, `${cart} ${held ? 'under' : 'without'} ${lock.resources[0]}`);
    return `noted ${cart}`;
  }
}

/** Apollo with everything Nest gives it, asked directly: the route of HTTP to it is a package of its own. */
class DirectDriver extends ApolloDriver {
  protected override async registerExpress(options: ApolloDriverConfig): Promise<void> {
    const { schema, plugins, formatError } = options;
    if (schema === undefined) throw new Error('Nest made no schema');
    this.apolloServer = new ApolloServer({ schema, plugins: plugins ?? [], formatError });
    await this.apolloServer.start();
  }
}

describe('a locked resolver', () => {
  let app: INestApplication;
  let apollo: ApolloServer;
  let redis: Redis;

  beforeAll(async () => {
    class AppModule {}
    Module({
      imports: [
        RedisLockModule.forRoot({ connection: sharedRedisUrl(), keyPrefix: prefix }),
        GraphQLModule.forRoot<ApolloDriverConfig>({
          driver: DirectDriver,
          autoSchemaFile: true,
          graphiql: false,
          includeStacktraceInErrorResponses: false,
        }),
      ],
      providers: [CartResolver],
    })(AppModule);
    app = await NestFactory.create(AppModule, new ExpressAdapter(), { logger: false });
    await app.init();
    apollo = app.get<GraphQLModule<DirectDriver>>(GraphQLModule).graphQlAdapter.instance;
    redis = new Redis(sharedRedisUrl());
  });
  afterEach(async () => void (await redis.del(ran)));
  afterAll(async () => {
    await app.close();
    await assertNothingLeft(redis, prefix);
    redis.disconnect();
  });

  const ask = async (query: string) => {
    const { body } = await apollo.executeOperation({ query }, { contextValue: {} });
    if (body.kind !== 'single') throw new Error('More than one answer');
    return JSON.parse(JSON.stringify(body.singleResult)) as unknown;
  };
  const whatRan = () => redis.lrange(ran, 0, -1);
  const acquire = (resource: string) => app.get(LockService).acquire(resource);

  const BUSY = {
    message: expect.stringMatching(/lock.*held by someone else/),
    extensions: { status: 423, originalError: { code: 'LOCK_NOT_ACQUIRED' } },
  };

  describe.each([
    ['above', '@Query', 'queryAbove', '{ queryAbove(id: "<id>") }'],
    ['below', '@Query', 'queryBelow', '{ queryBelow(id: "<id>") }'],
    ['above', '@Mutation', 'mutationAbove', 'mutation { mutationAbove(id: "<id>") }'],
    ['below', '@Mutation', 'mutationBelow', 'mutation { mutationBelow(id: "<id>") }'],
  ] as const)('with @WithLock %s %s', (_order, _kind, name, query) => {
    it('case 3: answers once, locked by what @Args names, and has committed by then', async () => {
      expect(await ask(query.replace('<id>', '7'))).toEqual({ data: { [name]: 'noted 7' } });
      expect(await whatRan()).toEqual(['7 under cart:7']);
      expect(await redis.exists(`${prefix}:{cart:7}`)).toBe(0);
    });

    it('case 11: is locked when code calls it', async () => {
      expect(await app.get(CartResolver)[name]('8')).toBe('noted 8');
      await using _lock = await acquire('cart:8');
      await expect(app.get(CartResolver)[name]('8')).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
      expect(await whatRan()).toEqual(['8 under cart:8']);
    });

    it('answers an error with the code when the lock is busy, and does not run', async () => {
      await using _lock = await acquire('cart:busy');
      expect(await ask(query.replace('<id>', 'busy'))).toMatchObject({ data: null, errors: [BUSY] });
      expect(await whatRan()).toEqual([]);
    });
  });

  describe.each([
    ['above', 'fieldAbove'],
    ['below', 'fieldBelow'],
  ] as const)('with @WithLock %s @ResolveField', (_order, name) => {
    it('case 3: resolves the field once, locked, and has committed when the answer is there', async () => {
      const answer = await ask(`{ cart(id: "9") { id ${name} } }`);
      expect(answer).toEqual({ data: { cart: { id: '9', [name]: 'noted 9' } } });
      expect(await whatRan()).toEqual(['9 under cart:9']);
    });

    it('case 11: is locked when code calls it', async () => {
      const call = () => app.get(CartResolver)[name]({ id: '10' });
      expect(await call()).toBe('noted 10');
      await using _lock = await acquire('cart:10');
      await expect(call()).rejects.toMatchObject({ code: 'LOCK_NOT_ACQUIRED' });
    });

    it('answers an error for the field when the lock is busy', async () => {
      await using _lock = await acquire('cart:busy');
      const answer = await ask(`{ cart(id: "busy") { id ${name} } }`);
      expect(answer).toMatchObject({ errors: [{ ...BUSY, path: ['cart', name] }] });
      expect(await whatRan()).toEqual([]);
    });
  });

  it('LockInterceptor locks by the arguments of a query, and answers an error when that is busy', async () => {
    expect(await ask('{ intercepted(id: "11") }')).toEqual({ data: { intercepted: 'noted 11' } });
    expect(await whatRan()).toEqual(['11 under cart:11']);
    await using _lock = await acquire('cart:busy');
    expect(await ask('{ intercepted(id: "busy") }')).toMatchObject({ data: null, errors: [BUSY] });
    expect(await whatRan()).toEqual(['11 under cart:11']);
  });

  it('does not tell a client the names of the resources', async () => {
    await using _lock = await acquire('cart:busy');
    const answer = await ask('{ queryAbove(id: "busy") }');
    expect(answer).toMatchObject({ errors: [BUSY] });
    expect(JSON.stringify(answer)).not.toContain('cart:busy');
  });
});
