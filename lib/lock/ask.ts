import type { LockUnavailableError } from '../errors/lock.errors.js';
import { now } from '../redis/instant.js';
import type { AcquireReply } from '../redis/lock-replies.js';
import type { LockStore } from '../redis/lock-store.js';
import type { AnswerListener } from '../redis/script-call.js';
import type { Waiter } from './waiter.js';

/** Who is told what Redis answers to an ask. */
export interface AskListener {
  answered(ask: Ask, answer: AcquireReply): void;
  failed(ask: Ask, error: LockUnavailableError): void;
}

/** What one waiter asks Redis once, and when. */
export class Ask implements AnswerListener<AcquireReply> {
  readonly waiter: Waiter;
  readonly sent = now();
  /** ms the place that it asks for may be needed. */
  readonly neededFor: number;
  readonly #listener: AskListener;
  readonly #call: ReturnType<LockStore['ask']>;

  constructor(store: LockStore, waiter: Waiter, listener: AskListener) {
    const { claim, patience, ticket } = waiter;
    this.waiter = waiter;
    this.neededFor = waiter.neededFor;
    this.#listener = listener;
    this.#call = store.ask(
      claim,
      { ticket, neededFor: this.neededFor, maxWaiters: patience.maxWaiters },
      this,
    );
  }

  /** What Redis replies, however late. */
  get reply(): Promise<AcquireReply> {
    return this.#call.reply;
  }

  isWanted(): boolean {
    return this.waiter.state === 'waiting';
  }

  answered(answer: AcquireReply): void {
    this.#listener.answered(this, answer);
  }

  failed(error: LockUnavailableError): void {
    this.#listener.failed(this, error);
  }
}
