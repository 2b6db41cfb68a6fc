type Listener = () => void;

/**
 * Listens to AbortSignals on behalf of many: once to each, however many wait with it. Node warns of more than ten listeners
 * on one signal, and an application may give the same one to each of its calls.
 */
export class AbortListeners {
  readonly #listening = new Map<
    AbortSignal,
    { readonly listeners: Set<Listener>; readonly onAbort: Listener }
  >();

  add(signal: AbortSignal, listener: Listener): void {
    const known = this.#listening.get(signal);
    if (known) return void known.listeners.add(listener);
    const listeners = new Set([listener]);
    const onAbort = () => {
      this.#listening.delete(signal);
      for (const each of listeners) each();
    };
    this.#listening.set(signal, { listeners, onAbort });
    signal.addEventListener('abort', onAbort, { once: true });
  }

  delete(signal: AbortSignal, listener: Listener): void {
    const known = this.#listening.get(signal);
    if (!known?.listeners.delete(listener) || known.listeners.size > 0) return;
    this.#listening.delete(signal);
    signal.removeEventListener('abort', known.onAbort);
  }
}
