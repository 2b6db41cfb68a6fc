import { Command } from 'ioredis';
import type { RedisCommander } from 'ioredis';
import { LockTransactionError } from '../errors/lock.errors.js';
import { resourcesOf } from '../redis/lock-keys.js';
import type { ResourceKeys } from '../redis/lock-keys.js';

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

declare module 'ioredis/built/utils/RedisCommander.js' {
  /** What ioredis' commands return, by the kind of client: here, more of the same. */
  interface ResultTypes<Result, Context> {
    guarded: LockTransaction;
  }
}

/**
 * Commands queued for the commit: ioredis' own chainable commands, less those that would leave the transaction.
 * Their replies come with `commit()` or `afterCommit()`. Read on `redis`.
 */
export interface LockTransaction extends Omit<RedisCommander<{ type: 'guarded' }>, RefusedMethod> {
  /** Queued commands have no reply yet: awaiting them throws a LockTransactionError. */
  readonly then: (queuedCommandsHaveNoReplyYet: never) => never;
}

/** What a queue has to know of the client its commands are sent by. */
export interface TransactionClient {
  /** Names of the commands that ioredis has, in lower case. */
  readonly knownCommands: ReadonlySet<string>;
  /** Slot of a key in a cluster; undefined where there is none. */
  readonly slotOf: (name: string) => number | undefined;
}

/** @returns what is wrong with the first of the names that is not in the slot of the lock */
export function keyElsewhere(
  { slotOf }: TransactionClient,
  [lock]: readonly ResourceKeys[],
  names: () => readonly string[],
): string | undefined {
  const slot = lock && slotOf(lock.owner);
  if (slot === undefined) return undefined;
  const name = names().find((each) => slotOf(each) !== slot);
  return name === undefined
    ? undefined
    : `key "${name}" is in another slot of the cluster than the lock on "${lock?.resource}"; see context.key()`;
}

const refused: ReadonlySet<string> = new Set(REFUSED_COMMANDS);

/**
 * The commands queued under one lock. Anything refused throws at once, and dooms the commit even if that is caught:
 * a transaction of which a part is missing is not the one that was meant.
 */
export class CommandQueue {
  readonly #client: TransactionClient;
  readonly #keys: readonly ResourceKeys[];
  #commands: QueuedCommand[] = [];
  #queuedSoFar = 0;
  #doom: LockTransactionError | undefined;

  /** What the work gets as `multi`. */
  readonly multi: LockTransaction;

  /** @param keys of the lock */
  constructor(client: TransactionClient, keys: readonly ResourceKeys[], assertOpen: () => void) {
    this.#client = client;
    this.#keys = keys;
    const queue = new Proxy(Object.create(null) as object, {
      get: (_target, name) => {
        if (typeof name === 'symbol') return undefined; // looked at by loggers and test runners
        assertOpen();
        if (name === 'then') throw this.#refuse('A queued command has no reply yet: read on `redis` instead');
        return (...args: unknown[]) => {
          assertOpen();
          this.#queue(name, args);
          return queue;
        };
      },
    });
    this.multi = queue as LockTransaction;
  }

  get length(): number {
    return this.#commands.length;
  }

  /** @throws LockTransactionError when something was refused */
  assertSound(): void {
    if (this.#doom) throw this.#doom;
  }

  /**
   * Hands out what is queued and starts anew.
   *
   * @throws LockTransactionError when something was refused
   */
  take(): QueuedCommand[] {
    this.assertSound();
    const commands = this.#commands;
    this.#commands = [];
    return commands;
  }

  /** Takes over commands that were queued elsewhere under the same lock. */
  add(commands: readonly QueuedCommand[]): void {
    for (const command of commands) this.#commands.push(command);
    this.#queuedSoFar += commands.length;
  }

  /** How many were queued so far, also those that were taken. */
  get queuedSoFar(): number {
    return this.#queuedSoFar;
  }

  /** Drops those that were queued since, as far as they were not taken. */
  dropSince(queuedSoFar: number): void {
    this.#commands.splice(Math.max(0, this.#commands.length - (this.#queuedSoFar - queuedSoFar)));
  }

  /** Has commands that were taken applied before everything else after all. */
  putBack(commands: readonly QueuedCommand[]): void {
    this.#commands = [...commands, ...this.#commands];
  }

  /** Forgets what is queued, and what was refused. */
  drop(): void {
    this.#commands = [];
    this.#doom = undefined;
  }

  #queue(method: string, args: readonly unknown[]): void {
    const called = method === 'call' || method === 'callBuffer';
    const name = called ? args[0] : method.replace(/Buffer$/, '');
    if (typeof name !== 'string') throw this.#refuse(`${method}() needs the name of a command`);
    const command = name.trim().toUpperCase();
    if (refused.has(command)) throw this.#refuse(`${command} cannot be part of a guarded transaction`);
    if (!called && !this.#client.knownCommands.has(method))
      throw this.#refuse(`"${method}" is no command that can be queued`);
    try {
      const given = called ? args.slice(1) : args;
      const spread = placeOfObject(command, given);
      const taken = given.map((arg, i) => snapshot(arg, i === spread));
      const elsewhere = keyElsewhere(this.#client, this.#keys, keysOf(command, taken));
      if (elsewhere) throw new TypeError(elsewhere);
      this.#commands.push({ method, args: called ? [name, ...taken] : taken });
      this.#queuedSoFar += 1;
    } catch (error) {
      throw this.#refuse(`${command} cannot be queued: ${(error as Error).message}`);
    }
  }

  #refuse(message: string): LockTransactionError {
    this.#doom ??= new LockTransactionError(`${message}; nothing was applied`, {
      applied: 'none',
      resources: resourcesOf(this.#keys),
    });
    return this.#doom;
  }
}

/** Commands of which ioredis spreads the last argument, an object or a Map, if they have exactly so many. */
const SPREADS_AN_OBJECT: ReadonlyMap<string, number> = new Map([
  ['HSET', 2],
  ['HMSET', 2],
  ['MSET', 1],
  ['MSETNX', 1],
]);

/** @returns the place of the argument that may be an object; -1 where none may */
function placeOfObject(command: string, args: readonly unknown[]): number {
  const count = SPREADS_AN_OBJECT.get(command);
  return count !== undefined && args.flat().length === count ? args.length - 1 : -1;
}

/**
 * An argument as it is now: it is sent later, when the work may have changed it. ioredis would send what it cannot
 * handle as `[object Object]`, or fail half way through writing the transaction.
 *
 * @throws TypeError for what is no argument of a command
 */
function snapshot(arg: unknown, mayBeObject: boolean): unknown {
  if (arg === null || typeof arg === 'undefined') return arg;
  if (Buffer.isBuffer(arg)) return Buffer.from(arg);
  if (Array.isArray(arg)) return arg.map((item) => snapshot(item, false));
  if (typeof arg === 'function')
    throw new TypeError('replies come with commit() or afterCommit(), not to a callback');
  if (typeof arg === 'symbol') throw new TypeError('a symbol is no argument');
  if (typeof arg !== 'object') return arg;
  if (mayBeObject) {
    const entries: Iterable<readonly [unknown, unknown]> = arg instanceof Map ? arg : Object.entries(arg);
    return new Map([...entries].map(([key, value]) => [snapshot(key, false), snapshot(value, false)]));
  }
  if (ArrayBuffer.isView(arg)) throw new TypeError('binary data has to be a Buffer; use Buffer.from()');
  // A Date, a URL or the id of a database has a text of its own.
  const text = typeof arg.toString === 'function' ? String(arg) : '[object Object]';
  if (/^\[object .*\]$/.test(text)) {
    throw new TypeError('an object is no argument; write it as text, with JSON.stringify for example');
  }
  return text;
}

function keysOf(command: string, args: readonly unknown[]): () => string[] {
  return () => new Command(command.toLowerCase(), [...args] as string[]).getKeys().map(String);
}
