import { createHash } from 'node:crypto';

/** What a script tells a waiter on its client's channel, see `tell` in script-parts.ts. */
export interface WakeUpMessage {
  /** Of the waiter's token. */
  readonly name: string;
  /** The key that the message is about, as Redis knows it. */
  readonly owner: string;
  /** Undefined: the waiter only has to ask. Anybody who may publish can say that. */
  readonly handedOver:
    | {
        readonly fencingToken: number;
        /** Names of those that come next, if they are of the same client. */
        readonly run: readonly string[];
        /** Whether this was said by a script, to the waiter that has this token. */
        isFor(token: string): boolean;
      }
    | undefined;
}

/** @returns undefined for what no script has sent */
export function parseWakeUp(text: string): WakeUpMessage | undefined {
  let parts: unknown;
  try {
    parts = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!Array.isArray(parts) || parts.length !== 5 || !parts.every((part) => typeof part === 'string')) {
    return undefined;
  }
  const [name, number, seal, run, owner] = parts as [string, string, string, string, string];
  if (number === '') return { name, owner, handedOver: undefined };
  const fencingToken = Number(number);
  if (!Number.isSafeInteger(fencingToken) || fencingToken <= 0) return undefined;
  const isFor = (token: string) => seal === sealOf([number, run, owner, token]);
  return { name, owner, handedOver: { fencingToken, run: run === '' ? [] : run.split(' '), isFor } };
}

/** As `tell` makes it. The token comes last, so that nobody can add to what was sealed. */
function sealOf(parts: readonly string[]): string {
  return createHash('sha1').update(parts.join('\n')).digest('hex');
}
