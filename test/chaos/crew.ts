import { fork } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Order, Usage, WorkerOptions } from './worker.js';

/** ms within which a worker ends what it has begun. */
const PATIENCE = 30_000;

/** A process of the crew. */
export class Member {
  readonly name: string;
  readonly history: string;
  readonly #child: ChildProcess;
  readonly #gone: Promise<unknown>;
  #isKilled = false;

  private constructor(options: WorkerOptions, build: string) {
    this.name = options.name;
    this.history = options.history;
    this.#child = fork(join(build, 'test/chaos/worker.js'), [JSON.stringify(options)], {
      execArgv: ['--expose-gc'],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    this.#gone = once(this.#child, 'exit');
  }

  /** @param build folder with the compiled library and worker. Default: the one this runs from. */
  static async start(options: WorkerOptions, build = ownBuild()): Promise<Member> {
    const member = new Member(options, build);
    const ended = member.#gone.then(() => {
      throw new Error(`The worker ${options.name} ended before it was ready`);
    });
    await Promise.race([once(member.#child, 'message'), ended]);
    ended.catch(() => undefined); // from here on it may end
    return member;
  }

  get isKilled(): boolean {
    return this.#isKilled;
  }

  async measure(): Promise<Usage> {
    const answer = once(this.#child, 'message');
    this.give({ order: 'measure' });
    const [usage] = await answer;
    return usage as Usage;
  }

  give(order: Order): void {
    if (this.#child.connected) this.#child.send(order);
  }

  freeze(): void {
    this.#child.kill('SIGSTOP');
  }

  thaw(): void {
    this.#child.kill('SIGCONT');
  }

  async kill(): Promise<void> {
    this.#isKilled = true;
    this.#child.kill('SIGKILL');
    await this.#gone;
  }

  /**
   * Lets it end its calls and close its application.
   *
   * @returns undefined, or what was wrong with how it ended
   */
  async end(): Promise<string | undefined> {
    if (this.#isKilled) return undefined;
    this.thaw();
    this.give({ order: 'stop' });
    const patience = setTimeout(() => this.#child.kill('SIGKILL'), PATIENCE);
    await this.#gone;
    clearTimeout(patience);
    const { exitCode, signalCode } = this.#child;
    return exitCode === 0 ? undefined : `${this.name} ended with ${exitCode ?? signalCode}`;
  }
}

export function ownBuild(): string {
  return fileURLToPath(new URL('../..', import.meta.url));
}
