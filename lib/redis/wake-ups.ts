import type { Redis, RedisOptions } from 'ioredis';
import { Outage } from './outage.js';
import { Silence } from './silence.js';
import { parseWakeUp } from './wake-up-message.js';
import type { WakeUpMessage } from './wake-up-message.js';

/** Reconnects soon and for ever: whoever waits depends on it. */
const SUBSCRIBER = {
  lazyConnect: true,
  disconnectTimeout: 0,
  retryStrategy: (attempt: number) => Math.min(50 * attempt, 1_000),
  autoResubscribe: false,
  reconnectOnError: null,
  enableOfflineQueue: true,
  enableReadyCheck: true, // otherwise ioredis 5 calls a connection ready that is about to be refused
  maxRetriesPerRequest: null,
  commandTimeout: undefined,
  monitor: false,
  keyPrefix: '', // ioredis would put it before the names of sharded channels, which have it already
} as const satisfies RedisOptions;

/** ms a channel stays subscribed to after its last waiter: the next one often comes soon. */
const LINGER = 5_000;

/** Part of the timeout in which a connection that was lost may come back before those who wait for it are refused. */
const RESTART = 1 / 4;

export interface WakeUpListener {
  /** A waiter has to look, or was handed its lock. */
  onWakeUp(message: WakeUpMessage): void;
  /** Messages may have been lost before this. */
  onSubscribed(): void;
  /** A channel is not to be heard here any more: its slot has moved. */
  onMoved(): void;
}

/** Where a waiter is told; sharded: in a cluster, on the server of a slot alone. */
export interface Channel {
  readonly name: string;
  readonly sharded: boolean;
}

interface Subscription {
  readonly channel: Channel;
  isReady: boolean;
  /** Whether Redis was asked, and has not answered. */
  isAsked: boolean;
  /** How often it was, or may have been, ended by Redis. */
  revoked: number;
  ready: Deferred;
  /** Since when nobody waits there. */
  unusedSince: number | undefined;
}

/**
 * Hears which waiters of this client got a lock, on a connection of its own that is made when somebody waits for the
 * first time. What was published while a channel was not subscribed to is lost, and Redis then counts the client as
 * gone: `onSubscribed` is told after a connection was made anew, so that all who wait can ask again.
 */
export class WakeUps {
  readonly #duplicate: (options: RedisOptions) => Redis;
  readonly #timeout: number;
  readonly #listener: WakeUpListener;
  readonly #subscriptions = new Map<string, Subscription>();
  #redis: Redis | undefined;
  #silence: Silence | undefined;
  #outage: Outage | undefined;
  /** How many subscriptions are not answered yet. */
  #asked = 0;
  #sweeper: NodeJS.Timeout | undefined;
  #closed = false;

  /** @param timeout ms Redis may take to answer */
  constructor(duplicate: (options: RedisOptions) => Redis, timeout: number, listener: WakeUpListener) {
    this.#duplicate = duplicate;
    this.#timeout = timeout;
    this.#listener = listener;
  }

  /**
   * Resolves when the channel is subscribed to; undefined when it is. Waits as long as it takes.
   *
   * @throws Redis' error when it refuses that, or the last word of a connection that was refused
   */
  listen(channel: Channel): Promise<void> | undefined {
    if (this.#closed) {
      const refused = Promise.reject(new Error('The connections to Redis are closed'));
      refused.catch(() => undefined); // the caller hears of it, if it wants to; a cluster only looks whether there is a promise
      return refused;
    }
    const known = this.#subscriptions.get(channel.name);
    if (known) {
      known.unusedSince = undefined;
      if (known.isReady) return undefined;
      if (!known.isAsked && this.#redis?.status === 'ready') void this.#subscribe(this.#redis, known);
      return this.#promised(known);
    }
    const subscription = {
      channel,
      isReady: false,
      isAsked: false,
      revoked: 0,
      ready: deferred(),
      unusedSince: undefined,
    };
    this.#subscriptions.set(channel.name, subscription);
    this.#redis ??= this.#connect();
    if (this.#redis.status === 'ready') void this.#subscribe(this.#redis, subscription);
    return this.#promised(subscription);
  }

  hears({ name }: Channel): boolean {
    return this.#subscriptions.get(name)?.isReady === true;
  }

  /** Nobody waits on this sharded channel any more, for the moment. */
  leave(name: string): void {
    const subscription = this.#subscriptions.get(name);
    if (!subscription) return;
    subscription.unusedSince = performance.now();
    this.#sweeper ??= setTimeout(() => this.#sweep(), LINGER).unref();
  }

  /** Sharded channels that are not to be heard here any more, since their slots have moved. */
  forget(isElsewhere: (channel: Channel) => boolean): void {
    for (const { channel } of this.#subscriptions.values()) if (isElsewhere(channel)) this.#drop(channel);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#sweeper);
    this.#redis?.disconnect();
  }

  /** Makes the connection anew, which may lead to another server. */
  renew(): void {
    if (this.#redis?.status === 'ready') this.#redis.disconnect(true);
  }

  #connect(): Redis {
    const redis = this.#duplicate(SUBSCRIBER);
    this.#silence = new Silence(redis, this.#timeout, () => this.#asked > 0);
    this.#outage = new Outage(redis, this.#timeout * RESTART);
    redis.on('error', () => this.#refuse());
    const onMessage = (_channel: string, text: string) => {
      const message = parseWakeUp(text);
      if (message) this.#listener.onWakeUp(message);
    };
    redis.on('message', onMessage).on('smessage', onMessage);
    redis.on('moved', () => {
      this.#mistrust(({ sharded }) => sharded); // it is not said which
      this.#listener.onMoved();
    });
    redis.on('ready', () => void this.#subscribeAll(redis));
    redis.on('close', () => {
      this.#mistrust(() => true);
      this.#refuse();
    });
    redis.connect().catch(() => undefined); // goes on trying by itself, and says why it failed
    return redis;
  }

  #promised(subscription: Subscription): Promise<void> {
    const { promise } = subscription.ready;
    if (this.#redis?.status === 'reconnecting') this.#refuse();
    return promise;
  }

  /** Who waits to be subscribed is told when the connection was refused; those who wait later are told later. */
  #refuse(): void {
    const refusal = this.#outage?.refusal;
    if (refusal === undefined) return;
    for (const subscription of this.#subscriptions.values()) {
      if (subscription.isReady) continue;
      subscription.ready.reject(refusal);
      subscription.ready = deferred();
    }
  }

  /** What was subscribed to has to be again. */
  #mistrust(isDoubtful: (channel: Channel) => boolean): void {
    for (const subscription of this.#subscriptions.values()) {
      if (!isDoubtful(subscription.channel)) continue;
      subscription.isReady = false;
      subscription.revoked += 1;
      if (subscription.ready.settled) subscription.ready = deferred();
    }
  }

  async #subscribeAll(redis: Redis): Promise<void> {
    await Promise.all([...this.#subscriptions.values()].map((each) => this.#subscribe(redis, each)));
    if (redis.status === 'ready') this.#listener.onSubscribed();
  }

  /** Never rejects: whoever wants to listen is told. */
  async #subscribe(redis: Redis, subscription: Subscription): Promise<void> {
    const { channel } = subscription;
    subscription.isAsked = true;
    this.#asked += 1;
    this.#silence?.listen();
    try {
      let revoked: number;
      do {
        revoked = subscription.revoked;
        await (channel.sharded ? redis.ssubscribe(channel.name) : redis.subscribe(channel.name));
        // Redis may have ended it before this is known here.
      } while (revoked !== subscription.revoked && this.#isNeeded(subscription, redis));
      if (revoked !== subscription.revoked) return; // the next connection subscribes, if anybody still waits
      subscription.isReady = true;
      subscription.ready.resolve();
    } catch (error) {
      if (redis.status !== 'ready') return; // the connection is gone: the next one subscribes
      if (this.#subscriptions.get(channel.name) === subscription) this.#subscriptions.delete(channel.name);
      subscription.ready.reject(error);
    } finally {
      subscription.isAsked = false;
      this.#asked -= 1;
      this.#silence?.heard();
    }
  }

  #isNeeded(subscription: Subscription, { status }: Redis): boolean {
    return status === 'ready' && this.#subscriptions.get(subscription.channel.name) === subscription;
  }

  #sweep(): void {
    this.#sweeper = undefined;
    const now = performance.now();
    let lingering = false;
    for (const { channel, unusedSince } of this.#subscriptions.values()) {
      if (unusedSince === undefined) continue;
      if (now - unusedSince >= LINGER) this.#drop(channel);
      else lingering = true;
    }
    if (lingering) this.#sweeper = setTimeout(() => this.#sweep(), LINGER).unref();
  }

  #drop({ name }: Channel): void {
    this.#subscriptions.delete(name);
    if (this.#redis?.status !== 'ready') return;
    const left = this.#redis.sunsubscribe(name);
    left.catch(() => undefined); // the slot is elsewhere, and so nothing is heard here; or the connection ended
  }
}

interface Deferred {
  readonly promise: Promise<void>;
  settled: boolean;
  resolve(): void;
  reject(error: unknown): void;
}

function deferred(): Deferred {
  let settle: { resolve(): void; reject(error: unknown): void } | undefined;
  const promise = new Promise<void>((resolve, reject) => (settle = { resolve, reject }));
  promise.catch(() => undefined); // whoever waits for it hears of it; nobody has to
  return {
    promise,
    settled: false,
    resolve() {
      this.settled = true;
      settle?.resolve();
    },
    reject(error) {
      this.settled = true;
      settle?.reject(error);
    },
  };
}
