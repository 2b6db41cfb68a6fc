import { BadRequestException, Inject, Injectable, Optional } from '@nestjs/common';
import type { CallHandler, ExecutionContext, NestInterceptor, Type } from '@nestjs/common';
import { of } from 'rxjs';
import type { Observable } from 'rxjs';
import { getLockServiceToken } from '../decorators/inject-lock-service.js';
import { LockKeyError } from '../errors/lock.errors.js';
import { LockService } from '../lock/lock.service.js';
import type { Resource, WithLockOptions } from '../redis-lock.options.js';
import { compileKey } from './lock-key.js';
import type { KeyOfCall, LockKey } from './lock-key.js';
import { INTERCEPTOR_OPTIONS, checkLockOptions } from './lock-options.js';
import { HandlerCalls } from './handler-calls.js';
import { observeLocked } from './run-locked.js';
import type { OnBusy } from './run-locked.js';

export interface LockInterceptorOptions extends WithLockOptions {
  /** As for `@WithLock`; a function is given the ExecutionContext. Default: 'throw'. */
  onBusy?: 'throw' | 'skip' | ((context: ExecutionContext) => unknown);
  /** Name of the RedisLockModule instance whose locks to use. Default: the one without a name. */
  instance?: string;
}

/** What a template can take its values from. */
const SOURCES = ['params', 'query', 'body', 'user', 'headers', 'data', 'args'] as const;

/** What Nest's `@Sse` leaves on a method. */
const NEST_SSE = '__sse__';

/**
 * An interceptor that runs a handler under a lock, keyed by the request before its pipes run:
 * `@UseInterceptors(LockInterceptor('cart:<user.id>'))` on a handler or a controller, or as APP_INTERCEPTOR.
 *
 * HTTP has `<params.x>`, `<query.x>`, `<body.x>`, `<headers.x>` and `<user.x>`; messages and WebSockets have `<data.x>`;
 * GraphQL has `<args.x>` and, of the request in its context, `<user.x>` and `<headers.x>`. A missing value is a 400.
 *
 * The lock is held until the handler's own promise has ended, also when the request is given up on before, by a timeout
 * interceptor on either side of this one, or since the client has left; and that end decides, as it does with `@WithLock`:
 * what it queued is committed, unless it threw. An error that comes while the handler runs is passed on at once. An
 * answer comes after the commit; for a handler that returns an Observable, see {@link WithLock}.
 *
 * Its limits: it sees the request as it came, not what pipes make of it. It does not run for field resolvers of GraphQL,
 * nor for calls from code, schedules and queues; `@WithLock` does. What a handler starts and does not await runs without
 * the lock. A refusal of `@Sse` cannot be a 423, since the stream has begun. A handler that returns a stream, a
 * StreamableFile for example, is refused with a LockConfigurationError: it would be read without the lock.
 *
 * @param key templates, or a function of the ExecutionContext
 * @throws LockConfigurationError for a placeholder that names no source, or a wrong option
 */
export function LockInterceptor(
  key: string | readonly string[] | ((context: ExecutionContext) => Resource),
  options: LockInterceptorOptions = {},
): Type<NestInterceptor> {
  const described = `LockInterceptor(${typeof key === 'function' ? 'function' : JSON.stringify(key)})`;
  const {
    instance,
    onBusy = 'throw',
    ...lockOptions
  } = checkLockOptions(options, described, INTERCEPTOR_OPTIONS);
  const keyOfRequest = compileKey(key as LockKey, described, (name) => {
    const index = (SOURCES as readonly string[]).indexOf(name);
    if (index !== -1) return index;
    return `names no part of a request; there are ${SOURCES.map((source) => `<${source}.x>`).join(', ')}`;
  });

  @Injectable()
  class LockingInterceptor implements NestInterceptor {
    constructor(
      @Inject(getLockServiceToken(instance)) private readonly service: LockService,
      // Missing where somebody makes the interceptor by hand: then the lock is given up when the Observable is left.
      @Optional() @Inject(HandlerCalls) private readonly calls?: HandlerCalls,
    ) {}

    intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
      const isStream = Reflect.getMetadata(NEST_SSE, context.getHandler()) === true;
      return observeLocked({
        service: () => this.service,
        method: described,
        resources: () => resourcesOf(context, typeof key === 'function', keyOfRequest),
        options: lockOptions,
        onBusy: isStream ? onBusy : withValue(onBusy),
        args: [context],
        work: () => next.handle(),
        observeHandler: (scope) => this.calls?.begin(context.getHandler() as () => unknown, scope),
      });
    }
  }
  return LockingInterceptor;
}

/** A response has to have a value, where a stream of events can be empty. */
function withValue(onBusy: NonNullable<LockInterceptorOptions['onBusy']>): OnBusy {
  if (onBusy === 'throw') return onBusy;
  if (onBusy === 'skip') return () => of(undefined);
  return async (context: ExecutionContext) => {
    const value: unknown = await onBusy(context);
    return value === undefined ? of(undefined) : value;
  };
}

function resourcesOf(context: ExecutionContext, byFunction: boolean, keyOfRequest: KeyOfCall): Resource {
  if (byFunction) return keyOfRequest([context]);
  const values = valuesOf(context);
  try {
    return keyOfRequest(SOURCES.map((source) => values[source]));
  } catch (error) {
    if (!(error instanceof LockKeyError) || context.getType<string>() === 'rpc' || context.getType() === 'ws')
      throw error;
    // The template is not the client's business; `cause` has it, for filters and logs.
    const { code } = error;
    const message = 'A value that the request has to name is missing, or is not usable';
    throw new BadRequestException({ statusCode: 400, error: 'Bad Request', message, code }, { cause: error });
  }
}

type Values = Partial<Record<(typeof SOURCES)[number], unknown>>;
type Request = Pick<Values, 'params' | 'query' | 'body' | 'user' | 'headers'>;

function valuesOf(context: ExecutionContext): Values {
  switch (context.getType<string>()) {
    case 'http':
      return context.switchToHttp().getRequest<Request>();
    case 'rpc':
      return { data: context.switchToRpc().getData<unknown>() };
    case 'ws':
      return {
        data: context.switchToWs().getData<unknown>(),
        user: context.switchToWs().getClient<Request>().user,
      };
    case 'graphql': {
      // A resolver is called with (parent, args, context, info).
      const { req, request, user } =
        context.getArgByIndex<{ req?: Request; request?: Request; user?: unknown }>(2) ?? {};
      const from = req ?? request;
      return { args: context.getArgByIndex<unknown>(1), user: user ?? from?.user, headers: from?.headers };
    }
    default:
      return { args: context.getArgs() };
  }
}
