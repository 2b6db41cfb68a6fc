import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import type { Readable } from 'node:stream';

/**
 * A small shell stands between us and the child. Its standard input is a pipe whose other end only we hold, so it
 * reads end-of-file when we close the pipe and also when we are gone in whatever way, SIGKILL included. It then kills
 * the child with SIGKILL, which even a stopped process obeys. The child itself is a background job, so that the shell
 * can wait for both: for end-of-file (in a subshell) and for an end of the child by itself.
 */
const WATCHER = `
exec 4<&0
"$@" </dev/null 3>&- 4<&- & child=$!
echo "$child" >&3
exec 3>&-
{ while read -r _; do :; done; kill -9 "$child" 2>/dev/null; } <&4 4<&- & reader=$!
exec 4<&-
wait "$child"; status=$?
kill -9 "$reader" 2>/dev/null
exit "$status"
`;

export interface ChildThatEndsWithUs {
  readonly pid: number;
  /** Whether it has ended, be it by itself or through end(). */
  hasEnded(): boolean;
  /** The last of what it printed. */
  output(): string;
  /** Kills it; resolves when it is gone. */
  end(): Promise<void>;
}

export async function startChildThatEndsWithUs(
  command: readonly string[],
  environment: NodeJS.ProcessEnv,
): Promise<ChildThatEndsWithUs> {
  const watcher = spawn('/bin/sh', ['-c', WATCHER, 'watcher', ...command], {
    stdio: ['pipe', 'pipe', 'pipe', 'pipe'],
    env: environment,
    cwd: tmpdir(),
    // In a process group of its own: Ctrl-C reaches us alone, who may still need the child to end in good order.
    detached: true,
  });
  const [stdin, stdout, stderr, pidPipe] = watcher.stdio;
  let ended = false;
  let output = '';
  const keep = (text: string) => (output = (output + text).slice(-10_000));
  // 'close' rather than 'exit': by then all output has arrived.
  const closed = once(watcher, 'close').finally(() => (ended = true));
  closed.catch((error: Error) => keep(error.message));
  stdin.on('error', () => undefined); // the watcher may be gone before we close its input
  stdout.setEncoding('utf8').on('data', keep);
  stderr.setEncoding('utf8').on('data', keep);

  const pid = Number(await firstLine(pidPipe as Readable));
  if (!pid) {
    await closed;
    throw new Error(`${command[0]} could not be started: ${output}`);
  }

  // Whoever forgets end() can exit all the same, and the child then ends too.
  const handles = [watcher, ...[stdin, stdout, stderr, pidPipe].filter((stream) => stream instanceof Socket)];
  for (const handle of handles) handle.unref();

  return {
    pid,
    hasEnded: () => ended,
    output: () => output,
    async end() {
      for (const handle of handles) handle.ref();
      stdin.end();
      await closed;
    },
  };
}

async function firstLine(stream: Readable): Promise<string> {
  let text = '';
  for await (const chunk of stream.setEncoding('utf8')) text += String(chunk);
  return text.trim();
}
