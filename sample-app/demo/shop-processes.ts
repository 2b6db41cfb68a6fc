import { fork } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as after } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { ShopIsOpen } from '../parent-process.js';

const MAIN = fileURLToPath(new URL('../main.js', import.meta.url));
const OPEN_WITHIN = 30_000;
const CLOSE_WITHIN = 5_000;

/** Instances of the shop, each a process of its own, as they are behind a load balancer. */
export class ShopProcesses {
  readonly #stop: AbortController;
  readonly #processes: ChildProcess[] = [];
  readonly #mishaps: string[] = [];
  #closing = false;

  /** @param stop aborted when one of the processes ends before close() */
  constructor(stop: AbortController) {
    this.#stop = stop;
  }

  /** Processes that ended in another way than close() asked for, in words. */
  get mishaps(): readonly string[] {
    return this.#mishaps;
  }

  /** @returns the shops' addresses */
  async open(howMany: number, environment: NodeJS.ProcessEnv): Promise<string[]> {
    const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(OPEN_WITHIN)]);
    const opened = Array.from({ length: howMany }, async (_, i) => {
      const shop = this.#start(`Shop ${i + 1}`, environment);
      const [{ port }] = (await once(shop, 'message', { signal })) as [ShopIsOpen];
      return `http://127.0.0.1:${port}`;
    });
    return Promise.all(opened).catch(() => {
      this.#stop.signal.throwIfAborted();
      throw new Error(`The shops did not open within ${OPEN_WITHIN / 1_000} s`);
    });
  }

  /** Asks the shops to end, and makes those that do not; resolves when none is left. */
  async close(): Promise<void> {
    this.#closing = true;
    const running = this.#processes.filter(isRunning);
    const ended = Promise.all(running.map((shop) => once(shop, 'exit')));
    for (const shop of running) shop.kill('SIGTERM');
    const patience = new AbortController();
    const impatient = after(CLOSE_WITHIN, undefined, { signal: patience.signal }).then(
      () => running.filter(isRunning).forEach((shop) => shop.kill('SIGKILL')),
      () => undefined, // all have ended
    );
    await ended;
    patience.abort();
    await impatient;
  }

  #start(name: string, environment: NodeJS.ProcessEnv): ChildProcess {
    // What a shop has to say goes to stderr: stdout is for the result.
    const shop = fork(MAIN, { env: environment, stdio: ['ignore', 2, 2, 'ipc'] });
    this.#processes.push(shop);
    shop.once('error', (error) => this.#report(`${name} could not be started: ${error.message}`));
    shop.once('exit', (code, signal) => {
      if (this.#closing && signal === 'SIGTERM') return;
      // By SIGKILL, for example, when it did not close in time.
      const how = signal ? `by ${signal}` : `with exit code ${code}`;
      this.#report(`${name} (process ${shop.pid}) ended ${how}`);
    });
    return shop;
  }

  #report(mishap: string): void {
    this.#mishaps.push(mishap);
    this.#stop.abort(new Error(mishap));
  }
}

function isRunning(shop: ChildProcess): boolean {
  return shop.pid !== undefined && shop.exitCode === null && shop.signalCode === null;
}
