import { LockUnavailableError } from '../errors/lock.errors.js';
import { resourcesOf } from './lock-keys.js';
import type { Claim } from './lock-keys.js';
import type { AcquireReply } from './lock-replies.js';
import { UnconfirmedError } from './redis-client.js';
import { unavailable } from './script-call.js';
import type { AnswerListener } from './script-call.js';
import type { Servers } from './servers.js';

/** Where something was asked for, to be compared: what was written elsewhere is not what WAIT is about. */
interface Asked {
  readonly server: unknown;
  readonly lostConnections: number;
}

/** Has replicas confirm grants before they count. */
export class ReplicaConfirmation {
  readonly #servers: Servers;
  readonly #commandTimeout: number;
  readonly #replicas: number;

  /** @param replicas how many have to confirm; 0: none */
  constructor(servers: Servers, commandTimeout: number, replicas: number) {
    this.#servers = servers;
    this.#commandTimeout = commandTimeout;
    this.#replicas = replicas;
  }

  get isNeeded(): boolean {
    return this.#replicas > 0;
  }

  /** Has to be called before a claim is asked for; undefined where none has to be confirmed. */
  before(claim: Claim): Promise<Asked> | undefined {
    if (!this.isNeeded) return undefined;
    const asked = this.#placeOf(claim);
    asked.catch(() => undefined); // heard of if there is a grant; otherwise the request fails itself
    return asked;
  }

  /** @throws LockUnavailableError when not enough replicas have what was granted last, there */
  async confirm(claim: Claim, asked: Asked, timeout = Infinity): Promise<void> {
    const { keys } = claim;
    const name = keys[0]?.owner ?? '';
    const { acquires } = this.#servers;
    const confirmed = await acquires.bounded(acquires.confirmed(name, this.#replicas), keys, timeout);
    const { server, lostConnections } = await this.#placeOf(claim);
    const isSame = server === asked.server && lostConnections === asked.lostConnections;
    if (isSame && confirmed >= this.#replicas) return;
    const message = isSame
      ? `${confirmed} of ${this.#replicas} replicas confirmed the lock in time`
      : 'The connection was lost before replicas had confirmed the lock';
    throw new LockUnavailableError(message, {
      resources: resourcesOf(keys),
      cause: new UnconfirmedError(message),
    });
  }

  /**
   * The listener, which hears of a grant when it is confirmed.
   *
   * @param bounded whether asking and confirming have commandTimeout together
   */
  listener(
    claim: Claim,
    listener: AnswerListener<AcquireReply>,
    bounded: boolean,
  ): AnswerListener<AcquireReply> {
    const asked = this.before(claim);
    if (asked === undefined) return listener;
    const until = bounded ? performance.now() + this.#commandTimeout : Infinity;
    const confirm = async () => this.confirm(claim, await asked, until - performance.now());
    return {
      isWanted: () => listener.isWanted(),
      failed: (error) => listener.failed(error),
      answered: (answer) => {
        if (!answer.granted) return listener.answered(answer);
        confirm().then(
          () => listener.answered(answer),
          (error: unknown) => listener.failed(unavailable(error, claim.keys)),
        );
      },
    };
  }

  async #placeOf({ keys }: Claim): Promise<Asked> {
    const { lostConnections } = this.#servers;
    const [first] = keys;
    return { server: first && (await this.#servers.of(first)), lostConnections };
  }
}
