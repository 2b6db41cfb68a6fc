import { Command } from 'ioredis';
import type { Redis } from 'ioredis';

/** As ioredis' pipelines answer: what Redis, or the connection, said to a command. */
export type Result = readonly [error: Error | null, reply?: unknown];

/** @param name of the command, in lower case */
export function command(
  redis: Redis,
  name: string,
  args: readonly unknown[],
  replyEncoding: 'utf8' | null = 'utf8',
): Command {
  const { keyPrefix } = redis.options;
  const prefix = keyPrefix === undefined ? {} : { keyPrefix };
  // The user's client may be of another copy of ioredis than ours, and of another version.
  const { Command: Own = Command } = redis.constructor as { Command?: typeof Command };
  return new Own(name, args as string[], { replyEncoding, ...prefix });
}

/** The command that a method of ioredis' client would send: `get`, `getBuffer`, `call('get')`. */
export function commandOf(redis: Redis, method: string, args: readonly unknown[]): Command {
  const isBuffer = method.endsWith('Buffer');
  const name = isBuffer ? method.slice(0, -'Buffer'.length) : method;
  const encoding = isBuffer ? null : 'utf8';
  if (name === 'call') return command(redis, String(args[0]), args.slice(1), encoding);
  return command(redis, name, args, encoding);
}

/** Of a transaction: its replies are those of the commands before it, each with an encoding of its own. */
export function execOf(redis: Redis): Command {
  return command(redis, 'exec', [], null);
}

/**
 * Sends commands in one write, so that a transaction that fits into a network segment comes in one piece. In place of
 * ioredis' pipelines: each of those defines a getter of its own, and V8 keeps that, and with it all of the pipeline,
 * until the next full garbage collection. The connection must have no offline queue: it would write nothing later.
 *
 * @returns a result for each of them, in order; missing as long as the connection neither answers nor ends
 * @throws at once when one cannot be written. Nothing was sent then, but ioredis may expect replies: the connection is
 * of no use any more.
 */
export function sendInOneWrite(redis: Redis, commands: readonly Command[]): Promise<Result[]> {
  let data = '';
  let buffers: Buffer[] | undefined;
  const gathered = {
    write(part: string | Buffer) {
      if (typeof part === 'string') data += part;
      else {
        (buffers ??= []).push(Buffer.from(data), part);
        data = '';
      }
    },
  };
  const results = resultsOf(commands); // first: whatever becomes of them is heard of
  for (const each of commands) redis.sendCommand(each, gathered as never);
  const all = buffers ? Buffer.concat([...buffers, Buffer.from(data)]) : data;
  // Otherwise there is no connection any more, and each command has been told so.
  if (all.length > 0) redis.stream.write(all);
  return results;
}

function resultsOf(commands: readonly Command[]): Promise<Result[]> {
  return new Promise((resolve) => {
    const results: Result[] = [];
    let missing = commands.length;
    const settle = (i: number, result: Result) => {
      results[i] = result;
      missing -= 1;
      if (missing === 0) resolve(results);
    };
    commands.forEach((each, i) => {
      each.promise.then(
        (reply: unknown) => settle(i, [null, each.name === 'exec' ? transformed(reply, commands) : reply]),
        (error: Error) => settle(i, [error]),
      );
    });
  });
}

/** The replies of a transaction, which is the end of what was sent. */
function transformed(replies: unknown, commands: readonly Command[]): unknown {
  if (!Array.isArray(replies)) return replies;
  const first = commands.length - 1 - replies.length;
  return replies.map((reply: unknown, i) => {
    if (reply instanceof Error) return reply;
    try {
      return commands[first + i]?.transformReply(reply as Buffer);
    } catch (error) {
      return error;
    }
  });
}
