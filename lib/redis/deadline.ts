/** Longest delay of a Node timer, ms; a longer one would fire at once. */
export const MAX_TIMER_DELAY = 2 ** 31 - 1;

/** A promise did not settle in time. It goes on; what it brings is the caller's to deal with. */
export class DeadlineError extends Error {
  override readonly name = 'DeadlineError';
}

/** Settles like the promise, or rejects with a DeadlineError after `ms`. Keeps no process alive. */
export function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new DeadlineError(`No answer within ${ms} ms`)),
      Math.min(ms, MAX_TIMER_DELAY),
    );
    timer.unref();
    promise.then(
      (value) => {
        clearTimeout(timer);
        resolve(value);
      },
      (error: unknown) => {
        clearTimeout(timer);
        reject(error as Error);
      },
    );
  });
}

/** A pause that ends early, without an error, when the signal is aborted. Keeps no process alive. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, Math.min(ms, MAX_TIMER_DELAY));
    timer.unref();
    signal?.addEventListener('abort', end);
  });
}

/** Calls back at a time of the monotonic clock, however far away. Keeps no process alive. */
export class Alarm {
  #timer: NodeJS.Timeout | undefined;
  readonly #callback: () => void;

  constructor(callback: () => void) {
    this.#callback = callback;
  }

  /** Replaces the time that was set before. */
  set(time: number): void {
    this.clear();
    const delay = Math.max(0, Math.ceil(time - performance.now()));
    this.#timer = setTimeout(
      () => (delay > MAX_TIMER_DELAY ? this.set(time) : this.#callback()),
      Math.min(delay, MAX_TIMER_DELAY),
    ).unref();
  }

  clear(): void {
    clearTimeout(this.#timer);
  }
}
