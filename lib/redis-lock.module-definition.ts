import { ConfigurableModuleBuilder } from '@nestjs/common';
import type { RedisLockModuleOptions } from './redis-lock.options.js';

/** What decides about the module itself rather than about its locks. */
export interface RedisLockModuleExtras {
  /** Whether LockService can be injected everywhere. Default: true. */
  isGlobal?: boolean;
  /** Name of a further instance; inject it by `@InjectLockService(name)`. */
  name?: string;
}

export const OPTIONS: unique symbol = Symbol('RedisLockModuleOptions');

export const { ConfigurableModuleClass, OPTIONS_TYPE, ASYNC_OPTIONS_TYPE } =
  new ConfigurableModuleBuilder<RedisLockModuleOptions>({ optionsInjectionToken: OPTIONS })
    .setClassMethodName('forRoot')
    .setFactoryMethodName('createRedisLockOptions')
    .setExtras<RedisLockModuleExtras>({ isGlobal: true, name: undefined }, (definition, { isGlobal }) => ({
      ...definition,
      global: isGlobal ?? true,
    }))
    .build();

/** What `forRootAsync` takes: useFactory (with inject), useClass or useExisting, imports, and what decides about the module. */
export type RedisLockModuleAsyncOptions = typeof ASYNC_OPTIONS_TYPE;
