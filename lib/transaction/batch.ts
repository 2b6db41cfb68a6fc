import type { Grant } from '../lock/grant.js';
import type { LockScope } from './lock-scope.js';
import type { QueuedCommand } from './lock-transaction.js';

export type CommitListener = (replies: unknown[]) => unknown;

/** A listener of the commit that holds what its work queued. */
export class Listening {
  constructor(
    /** Of the work that listens. */
    readonly scope: LockScope,
    readonly listener: CommitListener,
    /** What its work had queued when that ended; until then undefined, as more may come. */
    readonly commands?: readonly QueuedCommand[],
  ) {}

  /** What it hears the replies of, when these are the ones that are queued. */
  among(queued: readonly QueuedCommand[]): readonly QueuedCommand[] {
    return this.commands ?? queued;
  }

  /** The same for work that has ended. */
  boundTo(queued: readonly QueuedCommand[]): Listening {
    return this.commands ? this : new Listening(this.scope, this.listener, queued);
  }
}

/** Commands that are committed together, and what goes along with them. */
export class Batch {
  constructor(
    readonly commands: readonly QueuedCommand[],
    readonly listeners: readonly Listening[],
    /** The locks that it relies on, besides those of the scope that commits it. */
    readonly grants: readonly Grant[],
  ) {}

  get isEmpty(): boolean {
    return this.commands.length === 0 && this.listeners.length === 0;
  }

  /** Whether somebody wants to hear replies. */
  get isListenedTo(): boolean {
    return this.listeners.some((each) => each.among(this.commands).length > 0);
  }

  /** For a scope further out: from work that relied on the locks, and has ended. */
  handedIn(grants: readonly Grant[]): Batch {
    const listeners = this.listeners.map((each) => each.boundTo(this.commands));
    return new Batch(this.commands, listeners, grants);
  }
}

/** Each listener of a commit, with the replies that it is to hear; undefined for those that were lost. */
export function repliesByListener(
  batches: readonly Batch[],
  replies: readonly unknown[],
): { readonly listening: Listening; readonly replies: unknown[] }[] {
  const commands = batches.flatMap((batch) => batch.commands);
  const replyTo = new Map(commands.map((command, i) => [command, replies[i]]));
  return batches.flatMap(({ listeners, commands: queued }) =>
    listeners.map((listening) => ({
      listening,
      replies: listening.among(queued).map((command) => replyTo.get(command)),
    })),
  );
}
