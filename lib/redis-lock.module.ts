import { Module } from '@nestjs/common';
import type { DynamicModule, Provider } from '@nestjs/common';
import { APP_FILTER, HttpAdapterHost } from '@nestjs/core';
import { getLockServiceToken } from './decorators/inject-lock-service.js';
import { LockConfigurationError } from './errors/lock.errors.js';
import { LockExceptionFilter } from './errors/lock-exception.filter.js';
import { LockService } from './lock/lock.service.js';
import { ConfigurableModuleClass, OPTIONS } from './redis-lock.module-definition.js';
import type { ASYNC_OPTIONS_TYPE, OPTIONS_TYPE } from './redis-lock.module-definition.js';
import { resolveModuleOptions } from './redis-lock.options.js';
import type { RedisLockModuleOptions, ResolvedModuleOptions } from './redis-lock.options.js';
import { LockContext } from './transaction/lock-context.js';
import { CurrentLockContext, LockScopes } from './transaction/lock-scope.js';

/**
 * One for the whole application, however many lock services it has: LockContext speaks for the innermost scope,
 * whichever service it belongs to.
 */
@Module({
  providers: [
    LockScopes,
    {
      provide: LockContext,
      inject: [LockScopes],
      useFactory: (scopes: LockScopes) => new CurrentLockContext(scopes),
    },
  ],
  exports: [LockScopes, LockContext],
})
class LockScopeModule {}

/** The options after validation; what the providers of this module are made from. */
const RESOLVED_OPTIONS: unique symbol = Symbol('ResolvedRedisLockModuleOptions');

/**
 * Locks over one Redis: `RedisLockModule.forRoot({ connection: 'redis://..' })` in the root module, then
 * `@WithLock(..)` or LockService anywhere.
 */
@Module({})
export class RedisLockModule extends ConfigurableModuleClass {
  /** @throws LockConfigurationError naming the option that is wrong */
  static override forRoot(options: typeof OPTIONS_TYPE = {}): DynamicModule {
    const { isGlobal: _isGlobal, name, ...own } = options;
    resolveModuleOptions(own);
    return withLockService(super.forRoot(options), name);
  }

  /** Options that turn out to be wrong fail the boot, with a LockConfigurationError naming the option. */
  static override forRootAsync(options: typeof ASYNC_OPTIONS_TYPE): DynamicModule {
    const { useFactory, useClass, useExisting } = options;
    if ([useFactory, useClass, useExisting].filter((way) => way !== undefined).length !== 1) {
      throw new LockConfigurationError(
        'RedisLockModule.forRootAsync needs exactly one of useFactory, useClass and useExisting',
      );
    }
    return withLockService(super.forRootAsync(options), options.name);
  }
}

function withLockService(definition: DynamicModule, name: string | undefined): DynamicModule {
  if (name !== undefined && (typeof name !== 'string' || name === '')) {
    throw new LockConfigurationError('Option "name" of RedisLockModule must be a string, not empty');
  }
  const token = getLockServiceToken(name);
  const providers: Provider[] = [
    {
      provide: RESOLVED_OPTIONS,
      inject: [OPTIONS],
      useFactory: (options: RedisLockModuleOptions) => resolveModuleOptions(options),
    },
    {
      provide: token,
      inject: [RESOLVED_OPTIONS, LockScopes],
      useFactory: (options: ResolvedModuleOptions, scopes: LockScopes) => new LockService(options, scopes),
    },
    {
      provide: APP_FILTER,
      inject: [RESOLVED_OPTIONS, HttpAdapterHost],
      useFactory: ({ httpErrors }: ResolvedModuleOptions, host: HttpAdapterHost) =>
        httpErrors ? new LockExceptionFilter(host.httpAdapter) : undefined,
    },
  ];
  return {
    ...definition,
    imports: [...(definition.imports ?? []), LockScopeModule],
    providers: [...(definition.providers ?? []), ...providers],
    exports: [...(definition.exports ?? []), token, LockScopeModule],
  };
}
