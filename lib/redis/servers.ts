import type { Claim, ResourceKeys } from './lock-keys.js';
import { Server } from './server.js';
import type { ServerParts } from './server.js';
import type { Runner } from './script-runner.js';
import type { Channel } from './wake-ups.js';

/** Where the keys of locks are. */
export interface Servers {
  /** Runs the scripts, each where its keys are. */
  readonly runner: Runner;
  /** For what takes locks: apart where replicas have to confirm that, since to wait for them blocks a connection. */
  readonly acquires: Runner;
  /** What the user's client puts before every key. */
  readonly clientPrefix: string;
  /** How often a connection was lost: a request that was under way then may have been sent twice. */
  readonly lostConnections: number;
  /**
   * The server that has the keys of a resource.
   *
   * @throws LockUnavailableError when none is known that has them
   */
  of(keys: ResourceKeys): Server | Promise<Server>;
  /** Names what has to be equal for keys to stand in one script; undefined where all can. */
  slotOf(name: string): number | undefined;
  /** Whether waiters are told on a channel of their slot: in a cluster of servers that have such. */
  readonly sharded: boolean;
  /** Whether a hand-over to this waiter would be heard by now. */
  hears(waiter: Claim): boolean;
  /**
   * Resolves when a hand-over to this waiter would be heard; undefined when it would be by now.
   *
   * @throws Redis' error when it refuses the subscription
   */
  subscribed(waiter: Claim): Promise<void> | undefined;
  /** Nobody of this service waits for it any more. */
  unsubscribed(keys: ResourceKeys): void;
  /** All servers that have keys. */
  all(): Promise<readonly Server[]>;
  /** Redis could not do something for a reason that may lie in where it was asked. */
  lookAgain(): Promise<void>;
  close(): Promise<void>;
}

/** One Redis server, which has everything. */
export class SingleServer implements Servers {
  readonly clientPrefix: string;
  readonly sharded = false;
  readonly #channel: Channel;
  readonly #server: Server;
  #lostConnections = 0;

  constructor(parts: ServerParts, clientPrefix: string) {
    this.clientPrefix = clientPrefix;
    this.#channel = { name: parts.channelOf(), sharded: false };
    this.#server = new Server({
      ...parts,
      listener: { ...parts.listener, onLost: () => (this.#lostConnections += 1) },
    });
  }

  get runner(): Runner {
    return this.#server.runner;
  }

  get acquires(): Runner {
    return this.#server.acquires;
  }

  get lostConnections(): number {
    return this.#lostConnections;
  }

  hears(): boolean {
    return this.#server.wakeUps.hears(this.#channel);
  }

  subscribed(): Promise<void> | undefined {
    return this.#server.wakeUps.listen(this.#channel);
  }

  unsubscribed(): void {
    // One channel for all there is.
  }

  of(): Server {
    return this.#server;
  }

  slotOf(): undefined {
    return undefined;
  }

  async all(): Promise<readonly Server[]> {
    return [this.#server];
  }

  async lookAgain(): Promise<void> {
    // There is no other place.
  }

  close(): Promise<void> {
    return this.#server.close();
  }
}

/** The items in groups whose keys can stand in one script: where there is no cluster, that is all of them. */
export function bySlot<Item>(items: readonly Item[], slotOf: (item: Item) => number | undefined): Item[][] {
  const groups = new Map<number | undefined, Item[]>();
  for (const item of items) {
    const slot = slotOf(item);
    const group = groups.get(slot);
    if (group) group.push(item);
    else groups.set(slot, [item]);
  }
  return [...groups.values()];
}
