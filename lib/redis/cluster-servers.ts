import { setMaxListeners } from 'node:events';
import calculateSlot from 'cluster-key-slot';
import type { Cluster, Redis, RedisOptions } from 'ioredis';
import { LockUnavailableError } from '../errors/lock.errors.js';
import { ClusterRunner } from './cluster-runner.js';
import { pause, within } from './deadline.js';
import { ListenedLines } from './listened-lines.js';
import { isSharded } from './lock-keys.js';
import type { Claim, ResourceKeys } from './lock-keys.js';
import { Server } from './server.js';
import { isElsewhere, isReply, shown } from './redis-client.js';
import type { ServerParts } from './server.js';
import type { Servers } from './servers.js';
import type { Channel } from './wake-ups.js';

/** @param optionsNow of the node by which ioredis knows the server at the moment */
export type DuplicateOf = (node: Redis, options: RedisOptions, optionsNow: () => RedisOptions) => Redis;

/** What ioredis says of a connection when somebody else knows why. */
const CLOSED = 'Connection is closed.';

/** ms between two looks at who has which slots, at least. */
const LOOK_PAUSE = 50;
/** ms between two looks while a server cannot be reached: it may have been replaced. */
const OUTAGE_PAUSE = 250;

/**
 * The masters of a Redis Cluster, each with connections of our own, for ioredis' Cluster sends a whole pipeline again
 * whose reply was lost. Of the client only its knowledge is used: which server has which slots.
 */
export class ClusterServers implements Servers {
  readonly runner: ClusterRunner;
  readonly acquires: ClusterRunner;
  readonly #client: Cluster;
  readonly #parts: Omit<ServerParts, 'duplicate' | 'has'>;
  readonly #duplicateOf: DuplicateOf;
  readonly clientPrefix: string;
  /** By `host:port`. */
  readonly #servers = new Map<string, Server>();
  readonly #closing = new AbortController();
  #lostConnections = 0;
  #looking: Promise<void> | undefined;
  #lookedAt = -Infinity;
  readonly #lines = new ListenedLines();
  /** A subscription was ended by its server: waiters have to be followed, whatever the client knows of slots. */
  #hasMoved = false;
  /** Servers whose connection for scripts is down. */
  readonly #down = new Set<string>();
  /** What each server had when waiters were last told to ask: the client may learn of changes by itself. */
  readonly #announced = new Map<string, string>();
  /** Servers that are being closed, having nothing any more. */
  readonly #closings = new Set<Promise<void>>();
  #watching: Promise<void> | undefined;
  #lastWord: Error | undefined;
  readonly #onNodeError = (error: Error) => {
    if (error.message !== CLOSED || !this.#lastWord) this.#lastWord = shown(error);
  };
  readonly #onRefresh = () => (this.#lastWord = undefined);

  /** @param duplicateOf makes a connection to the server of a node */
  constructor(client: Cluster, parts: Omit<ServerParts, 'duplicate' | 'has'>, duplicateOf: DuplicateOf) {
    this.#client = client;
    this.#parts = parts;
    this.#duplicateOf = duplicateOf;
    client.on('node error', this.#onNodeError).on('refresh', this.#onRefresh);
    setMaxListeners(0, this.#closing.signal); // one for each pause
    this.clientPrefix = client.options.keyPrefix ?? '';
    this.runner = new ClusterRunner(this, parts.commandTimeout, (server) => server.runner);
    this.acquires = new ClusterRunner(this, parts.commandTimeout, (server) => server.acquires);
  }

  get isClosed(): boolean {
    return this.#closing.signal.aborted;
  }

  get lostConnections(): number {
    return this.#lostConnections;
  }

  /** Of the nodes that were asked who has which slots, while none has answered. */
  get lastWord(): Error | undefined {
    return this.#lastWord;
  }

  /** @throws LockUnavailableError when no server is known that has the slot */
  of({ owner }: ResourceKeys): Server | Promise<Server> {
    return this.ofName(owner);
  }

  ofName(name: string): Server | Promise<Server> {
    return this.#find(name) ?? this.#search(name);
  }

  /** The server that has a key as far as is known, if anything was asked of it before. */
  knownFor(name: string): Server | undefined {
    const [address = ''] = this.#client.slots[this.slotOf(name)] ?? [];
    return this.#servers.get(address);
  }

  slotOf(name: string): number {
    return calculateSlot(this.clientPrefix + name);
  }

  async all(): Promise<readonly Server[]> {
    await this.#ready();
    return this.#masters().map((address) => this.#serverAt(address));
  }

  /** Asks the cluster who has which slots now; once for all who want to know at the same time. */
  lookAgain(): Promise<void> {
    this.#looking ??= this.#look().finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  async close(): Promise<void> {
    this.#closing.abort();
    this.#client.off('node error', this.#onNodeError).off('refresh', this.#onRefresh);
    await Promise.all([...this.#servers.values()].map((server) => server.close()));
    await Promise.all(this.#closings);
    this.#servers.clear();
    await this.#watching;
  }

  /** Sharded channels came with Redis 7. In a cluster of several versions they are not used. */
  get sharded(): boolean {
    const versions = [...this.#servers.values()].map(({ version }) => version).filter((known) => known > 0);
    return versions.length > 0 && versions.every((version) => version >= 7);
  }

  hears({ token, keys }: Claim): boolean {
    const [first] = keys;
    if (!first) return false;
    return this.knownFor(first.owner)?.wakeUps.hears(this.#channelOf(first, token)) ?? false;
  }

  subscribed({ token, keys }: Claim): Promise<void> | undefined {
    const [first] = keys;
    if (!first) return undefined;
    const channel = this.#channelOf(first, token);
    this.#lines.add(first.owner, channel);
    const server = this.knownFor(first.owner);
    if (server && server.wakeUps.listen(channel) === undefined) return undefined;
    return this.#subscribedLater(first, channel);
  }

  unsubscribed({ owner }: ResourceKeys): void {
    for (const { name, sharded } of this.#lines.delete(owner)) {
      // The one for all lines of a server stays.
      if (sharded) for (const { wakeUps } of this.#servers.values()) wakeUps.leave(name);
    }
  }

  #channelOf({ tag }: ResourceKeys, token: string): Channel {
    const sharded = isSharded(token);
    return { name: this.#parts.channelOf(sharded ? tag : undefined), sharded };
  }

  /** Waits no longer than anybody waits for it. */
  async #subscribedLater(keys: ResourceKeys, channel: Channel): Promise<void> {
    const until = performance.now() + this.#parts.commandTimeout;
    let lastWord: Error | undefined;
    do {
      const patience = pause(OUTAGE_PAUSE, this.#closing.signal).then(() => undefined);
      const said = await Promise.race([this.#listen(keys, channel), patience]);
      if (said === 'listening') return;
      lastWord = said ?? lastWord;
      await this.lookAgain(); // the server may have been replaced
    } while (performance.now() < until && !this.isClosed);
    throw unreachable('No subscription was to be had in time', lastWord ?? this.#lastWord);
  }

  /** @returns why it has to be tried elsewhere */
  async #listen(keys: ResourceKeys, channel: Channel): Promise<'listening' | Error> {
    try {
      const { wakeUps } = await this.of(keys);
      await wakeUps.listen(channel);
      return 'listening';
    } catch (error) {
      const isFinal = !(error instanceof Error) || (isReply(error) && !isElsewhere(error));
      if (isFinal) throw error;
      return error instanceof LockUnavailableError && error.cause instanceof Error ? error.cause : error;
    }
  }

  #find(name: string): Server | undefined {
    const [address] = this.#client.slots[this.slotOf(name)] ?? [];
    return address === undefined ? undefined : this.#serverAt(address);
  }

  async #search(name: string): Promise<Server> {
    await this.#ready();
    const server = this.#find(name);
    if (server) return server;
    throw unreachable(`No server of the cluster has slot ${this.slotOf(name)} at the moment`);
  }

  async #ready(): Promise<void> {
    if (this.#client.status === 'wait') this.#client.connect().catch(() => undefined); // tries again by itself
    if (this.#client.slots.length > 0) return;
    const { commandTimeout } = this.#parts;
    const until = performance.now() + commandTimeout;
    while (this.#client.slots.length === 0 && performance.now() < until) {
      if (this.#closing.signal.aborted) throw new LockUnavailableError('The connections to Redis are closed');
      await pause(10, this.#closing.signal);
    }
    if (this.#client.slots.length === 0) {
      throw unreachable(`The cluster did not answer within ${commandTimeout} ms`, this.#lastWord);
    }
  }

  #masters(): string[] {
    return [...new Set(this.#client.slots.flatMap(([master]) => (master === undefined ? [] : [master])))];
  }

  #serverAt(address: string): Server {
    if (this.#closing.signal.aborted) throw new LockUnavailableError('The connections to Redis are closed');
    const known = this.#servers.get(address);
    if (known) return known;
    const node = this.#nodeAt(address);
    if (!node) throw unreachable(`The server ${address} is not known any more`);
    const { listener } = this.#parts;
    const server = new Server({
      ...this.#parts,
      slotOf: (name) => this.slotOf(name),
      duplicate: (options: RedisOptions) =>
        this.#duplicateOf(
          node,
          { ...(this.clientPrefix === '' ? {} : { keyPrefix: this.clientPrefix }), ...options },
          () => this.#nodeAt(address)?.options ?? node.options,
        ),
      has: ({ owner }) => this.#client.slots[this.slotOf(owner)]?.[0] === address,
      listener: {
        ...listener,
        onReady: () => {
          this.#down.delete(address);
          listener.onReady();
        },
        onMoved: () => this.#lookForMoved(),
        onLost: () => {
          this.#lostConnections += 1;
          if (this.#servers.get(address) !== server) return; // it was closed here
          this.#down.add(address);
          this.#watching ??= this.#watchOutage().finally(() => (this.#watching = undefined));
        },
      },
    });
    this.#servers.set(address, server);
    if (this.#announced.size === 0) this.#noteSlots();
    return server;
  }

  #nodeAt(address: string): Redis | undefined {
    return this.#client
      .nodes('all')
      .find(({ options }) => `${options.host ?? '127.0.0.1'}:${options.port ?? 6_379}` === address);
  }

  async #look(): Promise<void> {
    const since = performance.now() - this.#lookedAt;
    if (since < LOOK_PAUSE) await pause(LOOK_PAUSE - since, this.#closing.signal);
    this.#lookedAt = performance.now();
    const refreshed = new Promise<void>((resolve) => this.#client.refreshSlotsCache(() => resolve()));
    await within(this.#parts.commandTimeout, refreshed).catch(() => undefined); // whoever asks next tries again
    if (this.#closing.signal.aborted) return;
    const masters = new Set(this.#masters());
    if (masters.size === 0) return;
    for (const [address, server] of this.#servers) {
      if (masters.has(address)) continue;
      // It has nothing any more: what waits for it there has to ask elsewhere.
      this.#servers.delete(address);
      this.#down.delete(address);
      const closing = server.close().finally(() => this.#closings.delete(closing));
      this.#closings.add(closing);
    }
    this.#announceMoves(masters);
  }

  /** Has waiters ask again, and heard of where their lines are, when slots have moved. */
  #announceMoves(masters: ReadonlySet<string>): void {
    if (this.#announced.size === 0) return; // nobody has asked for anything yet
    const hasMoved = [...masters].some((address) => this.#announced.get(address) !== this.#slotsOf(address));
    if (!hasMoved && !this.#hasMoved) return;
    this.#hasMoved = false;
    this.#noteSlots();
    void this.#follow().then(() => this.#parts.listener.onSubscribed());
  }

  #lookForMoved(): void {
    this.#hasMoved = true;
    void this.lookAgain().catch(() => undefined); // looked at again by whoever needs it
  }

  #noteSlots(): void {
    this.#announced.clear();
    for (const address of this.#masters()) this.#announced.set(address, this.#slotsOf(address));
  }

  /** Listens where the lines are now. Never rejects: whoever waits asks in any case, and is told. */
  async #follow(): Promise<void> {
    const places = new Map<Server, Set<string>>();
    const listened = this.#lines.all().map(async ([owner, channels]) => {
      try {
        const server = this.#find(owner);
        if (!server) return;
        const names = places.get(server) ?? new Set();
        places.set(server, names);
        for (const { name } of channels) names.add(name);
        await Promise.all(channels.map((channel) => server.wakeUps.listen(channel)));
      } catch (error) {
        // The server is not to be had at the moment, or the slot has moved on.
        if (error instanceof Error && isElsewhere(error)) this.#lookForMoved();
      }
    });
    for (const server of this.#servers.values()) {
      server.wakeUps.forget(({ name, sharded }) => sharded && !places.get(server)?.has(name));
    }
    await within(this.#parts.commandTimeout, Promise.all(listened)).catch(() => undefined);
  }

  /** How many slots it has, in words that differ when they do. */
  #slotsOf(address: string): string {
    let [count, sum] = [0, 0];
    this.#client.slots.forEach(([master], slot) => {
      if (master !== address) return;
      count += 1;
      sum += slot;
    });
    return `${count}/${sum}`;
  }

  /** Never rejects. A server that cannot be reached may have been replaced, and nobody would say so. */
  async #watchOutage(): Promise<void> {
    while (this.#down.size > 0 && !this.#closing.signal.aborted) {
      await this.lookAgain().catch(() => undefined); // tried again below
      await pause(OUTAGE_PAUSE, this.#closing.signal);
    }
  }
}

/** Nothing was sent, and it may be otherwise a moment later: its cause tells that from what is final. */
function unreachable(message: string, lastWord?: Error): LockUnavailableError {
  const said = lastWord ? `${message}: ${lastWord.message}` : message;
  return new LockUnavailableError(said, { cause: lastWord ?? new Error(message) });
}
