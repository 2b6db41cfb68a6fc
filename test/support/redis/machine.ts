import { readFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { containerRuntimeAnswers } from './redis-container.js';

/** What the choice of a Redis asks of the machine, beyond the environment variables. */
export interface Machine {
  /** The user id we run as; undefined where the platform has none. */
  uid: number | undefined;
  /** The text of /etc/os-release; empty where there is none. */
  osRelease: string;
  containerRuntimeAnswers(): Promise<boolean>;
  /** A loopback port that was free a moment ago. */
  freePort(): Promise<number>;
}

/** How a server is to be started, as the ways of starting one share it. */
export interface Start {
  environment: NodeJS.ProcessEnv;
  say: (line: string) => void;
  machine: Machine;
  /** Path of a configuration, if there is one. */
  configFile: readonly string[];
  arguments: readonly string[];
  within: number;
}

export function thisMachine(): Machine {
  return { uid: process.getuid?.(), osRelease: osRelease(), containerRuntimeAnswers, freePort };
}

function osRelease(): string {
  try {
    return readFileSync('/etc/os-release', 'utf8');
  } catch {
    return '';
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}
