import { Catch, HttpException, Logger } from '@nestjs/common';
import type { ArgumentsHost } from '@nestjs/common';
import { BaseExceptionFilter } from '@nestjs/core';
import { throwError } from 'rxjs';
import type { Observable } from 'rxjs';
import { LockError, LockNotAcquiredError } from './lock.errors.js';

/** What a caller of a message handler or a gateway is told. */
interface Told {
  readonly status: 'error';
  readonly statusCode: number;
  readonly message: string;
  readonly code: string;
  readonly reason?: string;
  readonly retryAfter?: number;
}

/**
 * The errors of this package as answers: over HTTP, Retry-After for a lock that is not to be had, and Nest's own answer
 * besides; for messages and WebSockets an error that has the code, where Nest would only say that there was one; for
 * GraphQL the same answer as over HTTP. Anywhere else the error goes on as it is.
 *
 * Registered by RedisLockModule, behind all filters of the application, unless `httpErrors` is false. Nest applies no
 * global filter to gateways, nor to a microservice that is connected without `inheritAppConfig`: there it takes
 * `@UseFilters(LockExceptionFilter)`.
 */
@Catch(LockError)
export class LockExceptionFilter extends BaseExceptionFilter {
  readonly #logger = new Logger(LockExceptionFilter.name);

  override catch(exception: LockError, host: ArgumentsHost): void | Observable<never> {
    switch (host.getType<string>()) {
      case 'http':
        return this.#answer(exception, host);
      case 'rpc':
        return throwError(() => this.#tell(exception));
      case 'ws':
        return emit(host.switchToWs().getClient<WsClient>(), this.#tell(exception));
      case 'graphql':
        // There the message goes to the client, and ours names the resource.
        if (!isHttp(exception)) throw exception;
        throw new HttpException(exception.getResponse(), exception.getStatus(), { cause: exception });
      default:
        throw exception;
    }
  }

  #answer(exception: LockError, host: ArgumentsHost): void {
    if (exception instanceof LockNotAcquiredError && exception.retryAfter !== undefined) {
      const seconds = Math.max(1, Math.ceil(exception.retryAfter / 1_000));
      const adapter = this.applicationRef ?? this.httpAdapterHost?.httpAdapter;
      adapter?.setHeader?.(host.switchToHttp().getResponse(), 'Retry-After', String(seconds));
    }
    super.catch(exception, host);
  }

  #tell(exception: LockError): Told {
    const { code } = exception;
    if (!isHttp(exception)) {
      this.#logger.error(exception); // as Nest does with what is no answer to a caller
      return { status: 'error', statusCode: 500, message: 'Internal server error', code };
    }
    const { message } = exception.getResponse() as { message: string };
    const told: Told = { status: 'error', statusCode: exception.getStatus(), message, code };
    if (!(exception instanceof LockNotAcquiredError)) return told;
    const { reason, retryAfter } = exception;
    return { ...told, reason, ...(retryAfter === undefined ? {} : { retryAfter }) };
  }
}

function isHttp(exception: LockError): exception is LockError & HttpException {
  return typeof (exception as Partial<HttpException>).getStatus === 'function';
}

/** A socket of socket.io, or of the `ws` package, whose `emit` would only be heard here. */
interface WsClient {
  readonly readyState?: number;
  send?(message: string): void;
  emit?(event: string, told: Told): void;
}

function emit(client: WsClient | undefined, told: Told): void {
  if (typeof client?.readyState === 'number')
    client.send?.(JSON.stringify({ event: 'exception', data: told }));
  else client?.emit?.('exception', told);
}
