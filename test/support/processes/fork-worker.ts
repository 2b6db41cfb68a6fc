import { fork } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import type { RedisLockModuleOptions } from '../../../lib/index.js';
import type { Tasks } from './lock-worker.js';

/** A forked process with locks of its own. */
export interface Worker {
  readonly pid: number;
  /** Has it do something; rejects with the message, code and reason of the worker's error. */
  do<Task extends keyof Tasks>(task: Task, ...args: Parameters<Tasks[Task]>): ReturnType<Tasks[Task]>;
  signal(signal: 'SIGSTOP' | 'SIGCONT' | 'SIGTERM'): void;
  /** Resolves, with the signal if one ended it, when it is gone. */
  readonly gone: Promise<NodeJS.Signals | null>;
  /** Kills it, and resolves when it is gone. */
  kill(): Promise<void>;
  /** Lets it close its application; fails when it does not end by itself after that. */
  end(): Promise<void>;
}

export async function forkWorker(url: string, options: RedisLockModuleOptions): Promise<Worker> {
  const file = process.env['TEST_LOCK_WORKER'];
  if (!file) throw new Error('TEST_LOCK_WORKER is not set: the global setup did not run');
  const child = fork(file, { execArgv: [], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  const worker = control(child);
  await worker.ready;
  await worker.do('start', url, options);
  return worker;
}

function control(child: ChildProcess): Worker & { ready: Promise<void> } {
  const pending = new Map<number, { resolve(result: unknown): void; reject(error: unknown): void }>();
  let lastId = 0;
  const expectAnswer = (id: number) =>
    new Promise<unknown>((resolve, reject) => pending.set(id, { resolve, reject }));
  const ready = expectAnswer(0).then(() => undefined);
  const gone = new Promise<NodeJS.Signals | null>((resolve) => {
    child.once('exit', (_code, signal) => resolve(signal));
  });

  child.on('message', (message: { id: number; result?: unknown; error?: object }) => {
    const { id, result, error } = message;
    const call = pending.get(id);
    pending.delete(id);
    if (error) call?.reject(Object.assign(new Error(), error));
    else call?.resolve(result);
  });
  child.once('exit', (code, signal) => {
    for (const { reject } of pending.values()) reject(new Error(`The worker ended: ${code ?? signal}`));
  });
  return {
    ready,
    gone,
    pid: child.pid ?? 0,
    do(task, ...args) {
      const id = (lastId += 1);
      child.send({ id, task, args });
      return expectAnswer(id) as ReturnType<Tasks[typeof task]>;
    },
    signal: (signal) => void child.kill(signal),
    async kill() {
      child.kill('SIGKILL');
      await gone;
    },
    async end() {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGCONT');
        const patience = setTimeout(() => child.kill('SIGKILL'), 5_000);
        await this.do('close').catch(() => undefined); // it was killed, or its application was
        if (child.connected) child.disconnect();
        const signal = await gone;
        clearTimeout(patience);
        if (signal === 'SIGKILL')
          throw new Error('The worker did not end by itself after its application was closed');
      }
    },
  };
}
