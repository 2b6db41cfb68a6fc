import { Inject, Module } from '@nestjs/common';
import type {
  DynamicModule,
  ExceptionFilter,
  OnApplicationShutdown,
  OnModuleInit,
  Provider,
} from '@nestjs/common';
import { HttpAdapterHost, ModuleRef, ModulesContainer } from '@nestjs/core';
import type { ApplicationConfig } from '@nestjs/core';
import { getLockServiceToken } from './decorators/inject-lock-service.js';
import { LockConfigurationError } from './errors/lock.errors.js';
import { LockExceptionFilter } from './errors/lock-exception.filter.js';
import { bindInstances } from './execution/instance-binding.js';
import { HandlerCalls } from './execution/handler-calls.js';
import { LockServices } from './lock/lock-services.js';
import { LockService } from './lock/lock.service.js';
import { ConfigurableModuleClass, OPTIONS } from './redis-lock.module-definition.js';
import type {
  ASYNC_OPTIONS_TYPE,
  OPTIONS_TYPE,
  RedisLockModuleExtras,
} from './redis-lock.module-definition.js';
import { resolveModuleOptions } from './redis-lock.options.js';
import type { RedisLockModuleOptions, ResolvedModuleOptions } from './redis-lock.options.js';
import { LockContext } from './transaction/lock-context.js';
import { CurrentLockContext, LockScopes } from './transaction/lock-scopes.js';

/**
 * One for the whole application, however many lock services it has: LockContext speaks for the innermost scope,
 * whichever service it belongs to.
 */
@Module({
  providers: [
    LockScopes,
    {
      provide: LockServices,
      inject: [LockScopes],
      useFactory: (scopes: LockScopes) => new LockServices(scopes),
    },
    {
      provide: HandlerCalls,
      inject: [LockScopes],
      useFactory: (scopes: LockScopes) => new HandlerCalls(scopes),
    },
    {
      provide: LockContext,
      inject: [LockScopes],
      useFactory: (scopes: LockScopes) => new CurrentLockContext(scopes),
    },
  ],
  exports: [LockServices, HandlerCalls, LockContext],
})
class LockScopeModule {}

/** The options after validation; what the providers of this module are made from. */
const RESOLVED_OPTIONS: unique symbol = Symbol('ResolvedRedisLockModuleOptions');
const NAME: unique symbol = Symbol('RedisLockModuleName');

/**
 * Locks over one Redis: `RedisLockModule.forRoot({ connection: 'redis://..' })` in the root module, then
 * `@WithLock(..)` or LockService anywhere. An application has one lock service for each `name`: where several modules set
 * it up, with the same options they share it, and with different ones the boot fails with a LockConfigurationError.
 */
@Module({
  // What forRoot and forRootAsync put in its place. Without them, this is what the boot fails by.
  providers: [
    {
      provide: RESOLVED_OPTIONS,
      useFactory: () => {
        throw new LockConfigurationError(
          'RedisLockModule is imported as it is, and has no options: import RedisLockModule.forRoot(..) or forRootAsync(..)',
        );
      },
    },
  ],
})
export class RedisLockModule extends ConfigurableModuleClass implements OnModuleInit, OnApplicationShutdown {
  readonly #bindInstances: () => () => void;
  #unbindInstances: (() => void) | undefined;

  /** Called by Nest. */
  constructor(
    @Inject(RESOLVED_OPTIONS) { httpErrors }: ResolvedModuleOptions,
    @Inject(NAME) { name }: RedisLockModuleExtras,
    moduleRef: ModuleRef,
    modules: ModulesContainer,
    host: HttpAdapterHost,
  ) {
    super();
    // The adapter may be set later, as a testing module does.
    if (httpErrors)
      registerLast(moduleRef, Object.assign(new LockExceptionFilter(), { httpAdapterHost: host }));
    this.#bindInstances = () =>
      bindInstances(
        modules,
        this,
        name,
        moduleRef.get<LockService>(getLockServiceToken(name), { strict: true }),
      );
  }

  /** Called by Nest. */
  onModuleInit(): void {
    this.#unbindInstances = this.#bindInstances();
  }

  /** Called by Nest. */
  onApplicationShutdown(): void {
    this.#unbindInstances?.();
  }

  /** @throws LockConfigurationError naming the option that is wrong */
  static override forRoot(options: typeof OPTIONS_TYPE = {}): DynamicModule {
    const { isGlobal: _isGlobal, name, ...own } = assertObject(options, 'forRoot');
    resolveModuleOptions(own);
    return withLockService(super.forRoot(options), name);
  }

  /** Options that turn out to be wrong fail the boot, with a LockConfigurationError naming the option. */
  static override forRootAsync(options: typeof ASYNC_OPTIONS_TYPE): DynamicModule {
    const { useFactory, useClass, useExisting } = assertObject(options, 'forRootAsync');
    if ([useFactory, useClass, useExisting].filter((way) => way !== undefined).length !== 1) {
      throw new LockConfigurationError(
        'RedisLockModule.forRootAsync needs exactly one of useFactory, useClass and useExisting',
      );
    }
    return withLockService(super.forRootAsync(options), options.name);
  }
}

function assertObject<Options extends object>(options: Options, method: string): Options {
  if (typeof options === 'object' && options !== null) return options;
  throw new LockConfigurationError(
    `The options of RedisLockModule.${method} must be an object; got ${options === null ? 'null' : typeof options}`,
  );
}

function withLockService(definition: DynamicModule, name: string | undefined): DynamicModule {
  if (name !== undefined && (typeof name !== 'string' || name === '')) {
    throw new LockConfigurationError('Option "name" of RedisLockModule must be a string, not empty');
  }
  const token = getLockServiceToken(name);
  const providers: Provider[] = [
    { provide: NAME, useValue: { name } satisfies RedisLockModuleExtras },
    {
      provide: RESOLVED_OPTIONS,
      inject: [OPTIONS],
      useFactory: (options: RedisLockModuleOptions) => resolveModuleOptions(options),
    },
    {
      provide: token,
      inject: [RESOLVED_OPTIONS, LockServices],
      useFactory: (options: ResolvedModuleOptions, services: LockServices) => services.get(name, options),
    },
  ];
  return {
    ...definition,
    imports: [...(definition.imports ?? []), LockScopeModule],
    providers: [...(definition.providers ?? []), ...providers],
    exports: [...(definition.exports ?? []), token, LockScopeModule],
  };
}

/**
 * Nest asks global filters from the last one registered to the first, and an APP_FILTER of a module that is imported
 * counts as later than the application's own: it would keep our errors from them. Hence the front of the list, which
 * Nest shows to nobody but its own classes. One is enough, also for several instances.
 */
function registerLast(moduleRef: ModuleRef, filter: ExceptionFilter): void {
  const { container } = moduleRef as unknown as { container: { applicationConfig: ApplicationConfig } };
  const filters = container.applicationConfig.getGlobalFilters();
  if (!filters.some((each) => each instanceof LockExceptionFilter)) filters.unshift(filter);
}
