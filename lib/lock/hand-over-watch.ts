import { Alarm } from '../redis/deadline.js';
import type { ResourceKeys } from '../redis/lock-keys.js';
import { PROVISIONAL_TTL } from '../redis/script-parts.js';
import type { LockStore } from '../redis/lock-store.js';

/** ms after the end of a provisional grant until it is looked after. */
const AFTER_GRANT = 5;

/**
 * Looks after locks that went to a waiter of another client: should that one be frozen, the lock is free when its
 * provisional grant ends, and the others in line believe in a longer lease. Who handed it over is alive, and hands it
 * to the next one then: one command for each resource, after its last hand-over. A lock whose line begins with more clients
 * that are gone than one script call clears away is looked after at once.
 */
export class HandOverWatch {
  readonly #store: LockStore;
  readonly #alarms = new Map<string, Alarm>();
  readonly #looking = new Set<Promise<void>>();
  #closed = false;

  constructor(store: LockStore) {
    this.#store = store;
    store.onHandedAway = (keys, look) => (look === 'now' ? this.#look(keys) : this.#watch(keys));
  }

  /** Resolves when what is looked after at the moment has been. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const alarm of this.#alarms.values()) alarm.clear();
    this.#alarms.clear();
    while (this.#looking.size > 0) await Promise.all(this.#looking);
  }

  #watch(keys: ResourceKeys): void {
    if (this.#closed) return;
    const alarm = this.#alarms.get(keys.owner) ?? new Alarm(() => this.#look(keys));
    this.#alarms.set(keys.owner, alarm);
    alarm.set(performance.now() + PROVISIONAL_TTL + AFTER_GRANT);
  }

  #look(keys: ResourceKeys): void {
    this.#alarms.delete(keys.owner);
    const looking = this.#store
      .takeUp(keys)
      .catch(() => this.#watch(keys)) // nobody waits for this: it is tried again later
      .finally(() => this.#looking.delete(looking));
    this.#looking.add(looking);
  }
}
