import { Batch } from './batch.js';
import type { Listening } from './batch.js';
import type { LockScope } from './lock-scope.js';
import type { CommandQueue } from './lock-transaction.js';
import type { Visit } from './visits.js';

/** A batch on its way to the scope that is to commit it, in work that has to end well before. */
export interface Parcel {
  readonly to: LockScope;
  readonly batch: Batch;
  /** In the scopes that it has to come through: they wait for it. */
  readonly visits: readonly Visit[];
}

/** Something that a commit took from a scope. */
export interface Taken {
  readonly batch: Batch;
  /** @param applied false: nothing of it was, and it is put back */
  settle(applied: boolean): void;
}

/** How much there was at some time. */
export interface Mark {
  readonly queued: number;
  readonly listeners: number;
  readonly parcels: number;
}

const NONE: readonly never[] = [];

/** What one scope has that is not committed: of its own work, and of others on its way to scopes further out. */
export class Pending {
  readonly queue: CommandQueue;
  /** Made when needed: most scopes have none. */
  #listeners: Listening[] | undefined;
  #parcels: Parcel[] | undefined;
  /** How many there have been. */
  #listened = 0;
  #parceled = 0;
  /** Nothing comes in addition: all was dropped, or what came after a mark. */
  #isClosed = false;
  #isDropped = false;

  constructor(queue: CommandQueue) {
    this.queue = queue;
  }

  get mark(): Mark {
    return { queued: this.queue.queuedSoFar, listeners: this.#listened, parcels: this.#parceled };
  }

  /** Drops what came since, as far as it was not taken, and whatever comes later. */
  cutAt({ queued, listeners, parcels }: Mark): void {
    this.#isClosed = true;
    this.queue.dropSince(queued);
    const keep = (all: readonly unknown[] | undefined, since: number) =>
      Math.max(0, (all?.length ?? 0) - since);
    this.#listeners?.splice(keep(this.#listeners, this.#listened - listeners));
    const dropped = this.#parcels?.splice(keep(this.#parcels, this.#parceled - parcels)) ?? NONE;
    for (const parcel of dropped) letGo(parcel);
  }

  listen(listening: Listening): void {
    this.#listened += 1;
    (this.#listeners ??= []).push(listening);
  }

  /** Whether it was cut at a mark: what it still has was there before. */
  get isCut(): boolean {
    return this.#isClosed && !this.#isDropped;
  }

  /** @param isOld what a scope that was cut itself has handed in: it was there before this one was cut */
  add(batch: Batch, isOld = false): void {
    if (isOld ? this.#isDropped : this.#isClosed) return;
    this.queue.add(batch.commands);
    for (const listening of batch.listeners) this.listen(listening);
  }

  addParcel(parcel: Parcel, isOld = false): void {
    if (isOld ? this.#isDropped : this.#isClosed) return letGo(parcel);
    this.#parceled += 1;
    (this.#parcels ??= []).push(parcel);
  }

  /**
   * The commands, and the listeners that these concern; the others wait for later commands, or for the end.
   *
   * @throws LockTransactionError when something was refused
   */
  take(): Batch {
    const commands = this.queue.take();
    const isConcerned = (each: Listening) => each.among(commands).length > 0;
    const concerned = this.#listeners?.filter(isConcerned) ?? NONE;
    this.#listeners = this.#listeners?.filter((each) => !isConcerned(each));
    return new Batch(commands, concerned, NONE);
  }

  /**
   * The commands, and all listeners.
   *
   * @throws LockTransactionError when something was refused
   */
  takeAll(): Batch {
    const all = new Batch(this.queue.take(), this.#listeners ?? NONE, NONE);
    this.#listeners = undefined;
    return all;
  }

  /** For a commit under the locks of these scopes, of which `self` may be one. */
  takeFor(scopes: ReadonlySet<LockScope>, self: LockScope): Taken[] {
    const taken: Taken[] = [];
    if (scopes.has(self)) {
      const batch = this.take();
      taken.push({ batch, settle: (applied) => applied || this.#putBack(batch) });
    }
    for (const parcel of this.takeParcels(({ to, batch }) => scopes.has(to) && batch.commands.length > 0)) {
      const settle = (applied: boolean) => (applied ? letGo(parcel) : this.addParcel(parcel));
      taken.push({ batch: parcel.batch, settle });
    }
    return taken;
  }

  takeParcels(isWanted: (parcel: Parcel) => boolean = () => true): readonly Parcel[] {
    if (this.#parcels === undefined) return NONE;
    const wanted = this.#parcels.filter(isWanted);
    this.#parcels = this.#parcels.filter((parcel) => !wanted.includes(parcel));
    return wanted;
  }

  /** For good: what comes back, or in addition, is dropped as well. */
  drop(): void {
    this.#isDropped = true;
    this.#isClosed = true;
    this.queue.drop();
    this.#listeners = undefined;
    for (const parcel of this.takeParcels()) letGo(parcel);
  }

  #putBack({ commands, listeners }: Batch): void {
    if (this.#isDropped) return;
    this.queue.putBack(commands);
    if (listeners.length > 0) this.#listeners = [...listeners, ...(this.#listeners ?? NONE)];
  }
}

/** The scopes on its way need not wait for it any more. */
export function letGo({ visits }: Parcel): void {
  for (const visit of visits) visit.leave();
}
