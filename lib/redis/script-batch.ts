import { isReply } from './redis-client.js';
import type { ScriptCall } from './script-call.js';
import type { ClaimScript, Script } from './script-parts.js';

/** Claims in one script call. A full one is sent at once, so that Redis is at work on it while others come together. */
const MAX_CLAIMS = 16;

/** Of a claim on one resource; one on several goes alone. */
const KEYS_OF_ONE = 3;

/**
 * Calls of one tick of a script that answers for many claims: they go to Redis in one command, and each gets its own
 * reply or error. Any other script goes alone.
 */
export class ScriptBatch {
  readonly script: Script | ClaimScript;
  readonly calls: ScriptCall[] = [];
  readonly #send: (batch: ScriptBatch) => void;
  /** On the monotonic clock; undefined as long as it may take more. */
  sentAt: number | undefined;
  /** Number of the connection on which it was sent last. */
  connection = 0;

  constructor(script: Script | ClaimScript, send: (batch: ScriptBatch) => void) {
    this.script = script;
    this.#send = send;
  }

  takes({ script, names }: ScriptCall): boolean {
    return script === this.script && this.sentAt === undefined && names.length === KEYS_OF_ONE;
  }

  add(call: ScriptCall): void {
    this.calls.push(call);
    const isFull = this.calls.length === MAX_CLAIMS || call.names.length !== KEYS_OF_ONE;
    if (isFull || !('answersEach' in this.script)) this.flush();
    else if (this.calls.length === 1) process.nextTick(flush, this); // after the answers that are being passed on now
  }

  /** @param sentAt when its calls were sent for the first time */
  flush(sentAt = performance.now()): void {
    if (this.sentAt !== undefined) return;
    this.sentAt = sentAt;
    this.#send(this);
  }

  /** Takes out the calls whose answers are of no use any more. */
  takeUnwanted(): ScriptCall[] {
    const unwanted = this.calls.filter((call) => !call.isWanted);
    if (unwanted.length > 0) this.calls.splice(0, Infinity, ...this.calls.filter((call) => call.isWanted));
    return unwanted;
  }

  /** What is sent: how many KEYS, KEYS, ARGV. */
  args(): [keys: number, ...args: (string | number)[]] {
    const args: [number, ...(string | number)[]] = [0];
    for (const { names } of this.calls) for (const name of names) args.push(name);
    args[0] = args.length - 1;
    for (const { argv } of this.calls) for (const arg of argv) args.push(arg);
    return args;
  }

  /**
   * @param isPassing whether an error is none of the call, which can be sent again
   * @returns the calls to which Redis replied with such an error, and have to be sent again
   */
  replied(reply: unknown, isPassing: (error: Error) => boolean): readonly ScriptCall[] | undefined {
    if (!('answersEach' in this.script)) return this.#repliedAlone(reply, isPassing);
    const replies: readonly unknown[] = Array.isArray(reply) ? reply : [];
    let again: ScriptCall[] | undefined;
    for (let i = 0; i < this.calls.length; i += 1) {
      const call = this.calls[i] as ScriptCall;
      const own = replies[i];
      if (i >= replies.length) call.failed(new Error('Redis gave no reply to this one'));
      else if (!(own instanceof Error)) call.replied(own);
      else if (isPassing(own)) {
        call.lastWord = own;
        (again ??= []).push(call);
      } else call.failed(own);
    }
    return again;
  }

  /** A script that renews many leases says of each what became of it: when one was refused like that, so were all. */
  #repliedAlone(reply: unknown, isPassing: (error: Error) => boolean): readonly ScriptCall[] | undefined {
    const refusal: unknown = Array.isArray(reply) ? reply.find((own) => own instanceof Error) : undefined;
    if (refusal instanceof Error && isPassing(refusal)) {
      for (const call of this.calls) call.lastWord = refusal;
      return this.calls;
    }
    this.calls[0]?.replied(reply);
    return undefined;
  }

  failed(error: unknown): void {
    if (this.calls.length === 1 || !(error instanceof Error) || !isReply(error)) {
      for (const call of this.calls) call.failed(error);
      return;
    }
    // The command was refused before it ran, be it for the keys of one of them: each hears its own.
    for (const call of this.calls) {
      const alone = new ScriptBatch(this.script, this.#send);
      alone.calls.push(call);
      alone.flush(this.sentAt);
    }
  }
}

function flush(batch: ScriptBatch): void {
  batch.flush();
}
