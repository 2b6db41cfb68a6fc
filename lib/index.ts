export { InjectLockService, getLockServiceToken } from './decorators/inject-lock-service.js';
export { LockParam } from './decorators/lock-param.js';
export { WithLock } from './decorators/with-lock.js';
export type { WithLockDecoratorOptions } from './decorators/with-lock-types.js';
export { LockExceptionFilter } from './errors/lock-exception.filter.js';
export * from './errors/lock.errors.js';
export { LockInterceptor } from './execution/lock.interceptor.js';
export type { LockInterceptorOptions } from './execution/lock.interceptor.js';
export type { LockKey } from './execution/lock-key.js';
export { LockService } from './lock/lock.service.js';
export { Lock } from './lock/lock.js';
export type { LockState } from './redis/lock-replies.js';
export { RedisLockModule } from './redis-lock.module.js';
export type { RedisCredentials } from './redis/credentials.js';
export type { RedisLockModuleAsyncOptions, RedisLockModuleExtras } from './redis-lock.module-definition.js';
export type {
  AcquireOptions,
  ClusterConnection,
  RedisLockModuleOptions,
  RedisLockOptionsFactory,
  Resource,
  WithLockOptions,
} from './redis-lock.options.js';
export { LockContext } from './transaction/lock-context.js';
export type { LockTransaction } from './transaction/lock-transaction.js';
