import { Catch } from '@nestjs/common';
import type { ArgumentsHost } from '@nestjs/common';
import { BaseExceptionFilter } from '@nestjs/core';
import { throwError } from 'rxjs';
import type { Observable } from 'rxjs';
import { LockNotAcquiredError } from './lock.errors.js';

/**
 * Adds Retry-After to the HTTP answer of a lock that is not to be had, and leaves the rest to Nest. Where there is no
 * HTTP answer to give, the error goes on as it is. Registered by RedisLockModule, behind all filters of the
 * application, unless `httpErrors` is false.
 */
@Catch(LockNotAcquiredError)
export class LockExceptionFilter extends BaseExceptionFilter {
  override catch(exception: LockNotAcquiredError, host: ArgumentsHost): void | Observable<never> {
    if (host.getType() === 'rpc') return throwError(() => exception);
    if (host.getType() !== 'http') throw exception;
    if (exception.retryAfter !== undefined) {
      const seconds = Math.max(1, Math.ceil(exception.retryAfter / 1_000));
      const adapter = this.applicationRef ?? this.httpAdapterHost?.httpAdapter;
      adapter?.setHeader?.(host.switchToHttp().getResponse(), 'Retry-After', String(seconds));
    }
    super.catch(exception, host);
  }
}
