import type { ChainableCommander } from 'ioredis';
import { LockTransactionError } from '../errors/lock.errors.js';

/** A command that was queued: what ioredis would be called with. */
export interface QueuedCommand {
  readonly method: string;
  readonly args: readonly unknown[];
}

/** Changes the connection, leaves the transaction, waits, or must not stand inside one. Upper case. */
// prettier-ignore
const REFUSED_COMMANDS = [
  'EXEC', 'DISCARD', 'MULTI', 'WATCH', 'UNWATCH', 'RESET', 'QUIT', 'SELECT', 'HELLO', 'AUTH', 'CLIENT',
  'ASKING', 'READONLY', 'READWRITE', 'SWAPDB', 'SCRIPT', 'FUNCTION', 'MONITOR', 'SYNC', 'PSYNC',
  'SUBSCRIBE', 'PSUBSCRIBE', 'SSUBSCRIBE', 'UNSUBSCRIBE', 'PUNSUBSCRIBE', 'SUNSUBSCRIBE',
  'BLPOP', 'BRPOP', 'BRPOPLPUSH', 'BLMOVE', 'BLMPOP', 'BZPOPMIN', 'BZPOPMAX', 'BZMPOP', 'WAIT', 'WAITAOF',
  'ACL', 'BGREWRITEAOF', 'BGSAVE', 'CLUSTER', 'CONFIG', 'DEBUG', 'FAILOVER', 'LATENCY', 'MODULE',
  'REPLCONF', 'REPLICAOF', 'ROLE', 'SAVE', 'SHUTDOWN', 'SLAVEOF', 'SLOWLOG', 'SENTINEL',
] as const;

type RefusedMethod =
  | Lowercase<(typeof REFUSED_COMMANDS)[number]>
  | `${Lowercase<(typeof REFUSED_COMMANDS)[number]>}Buffer`
  | 'pipeline'
  | 'length';

/**
 * Commands queued for the commit: ioredis' own chainable commands, less those that would leave the transaction.
 * Their replies come with `commit()` or `afterCommit()`. Read on `redis`.
 */
export type LockTransaction = Omit<ChainableCommander, RefusedMethod> & {
  /** Queued commands have no reply yet; awaiting one is a mistake that the compiler finds. */
  readonly then: (queuedCommandsHaveNoReplyYet: never) => never;
};

const refused: ReadonlySet<string> = new Set(REFUSED_COMMANDS);

/**
 * The commands queued under one lock. Anything refused throws at once, and dooms the commit even if that is caught:
 * a transaction of which a part is missing is not the one that was meant.
 */
export class CommandQueue {
  readonly #known: ReadonlySet<string>;
  readonly #resources: readonly string[];
  #commands: QueuedCommand[] = [];
  #doom: LockTransactionError | undefined;

  /** What the work gets as `multi`. */
  readonly multi: LockTransaction;

  /** @param known names of the commands that ioredis has, in lower case */
  constructor(known: ReadonlySet<string>, resources: readonly string[], assertOpen: () => void) {
    this.#known = known;
    this.#resources = resources;
    const queue = new Proxy(Object.create(null) as object, {
      get: (_target, name) => {
        if (typeof name === 'symbol') return undefined; // looked at by loggers and test runners
        assertOpen();
        if (name === 'then') throw this.#refuse('A queued command has no reply yet: read on `redis` instead');
        return (...args: unknown[]) => {
          assertOpen();
          this.#add(name, args);
          return queue;
        };
      },
    });
    this.multi = queue as LockTransaction;
  }

  get length(): number {
    return this.#commands.length;
  }

  /**
   * Hands out what is queued and starts anew.
   *
   * @throws LockTransactionError when something was refused
   */
  take(): QueuedCommand[] {
    if (this.#doom) throw this.#doom;
    const commands = this.#commands;
    this.#commands = [];
    return commands;
  }

  #add(method: string, args: readonly unknown[]): void {
    const called = method === 'call' || method === 'callBuffer';
    const name = called ? args[0] : method.replace(/Buffer$/, '');
    if (typeof name !== 'string') throw this.#refuse(`${method}() needs the name of a command`);
    const command = name.trim().toUpperCase();
    if (refused.has(command)) throw this.#refuse(`${command} cannot be part of a guarded transaction`);
    if (!called && !this.#known.has(method))
      throw this.#refuse(`"${method}" is no command that can be queued`);
    if (args.some((arg) => typeof arg === 'function')) {
      throw this.#refuse(
        `${command} was queued with a callback; replies come with commit() or afterCommit()`,
      );
    }
    this.#commands.push({ method, args });
  }

  #refuse(message: string): LockTransactionError {
    this.#doom ??= new LockTransactionError(`${message}; nothing was applied`, {
      applied: 'none',
      resources: this.#resources,
    });
    return this.#doom;
  }
}
