import type { ClusterServers } from './cluster-servers.js';
import { pause } from './deadline.js';
import type { ResourceKeys } from './lock-keys.js';
import { isElsewhere, isReply } from './redis-client.js';
import { ScriptCall } from './script-call.js';
import type { ScriptRequest } from './script-call.js';
import { bounded } from './script-runner.js';
import type { Runner, ScriptRunner } from './script-runner.js';
import type { Server } from './server.js';

/** ms until keys are asked for again that are on their way from one server to another. */
const MOVING_PAUSE = 50;

/**
 * Runs each script on the server that has its keys, and follows them when they move. All scripts can be sent twice:
 * they are idempotent by token.
 */
export class ClusterRunner implements Runner {
  readonly #servers: ClusterServers;
  readonly #commandTimeout: number;
  readonly #runnerOf: (server: Server) => ScriptRunner;

  /** @param runnerOf which of the connections to a server this one uses */
  constructor(servers: ClusterServers, commandTimeout: number, runnerOf: (server: Server) => ScriptRunner) {
    this.#servers = servers;
    this.#commandTimeout = commandTimeout;
    this.#runnerOf = runnerOf;
  }

  call<T>(request: ScriptRequest<T>): ScriptCall<T> {
    const call = new ScriptCall(request);
    const [name = ''] = request.names;
    if (request.bounded !== false) call.expireIn(this.#commandTimeout, () => this.#lastWordOf(name));
    const listener = { isWanted: () => call.isWanted, answered: ignore, failed: ignore };
    const following = { ...request, decode: (reply: unknown) => reply, bounded: false, listener };
    this.#run(call as ScriptCall, following).then(
      (reply) => call.replied(reply),
      (error: unknown) => call.failed(error),
    );
    return call;
  }

  /** Of the connection to the server that has it, or of the cluster. */
  #lastWordOf(name: string): Error | undefined {
    const server = this.#servers.knownFor(name);
    return server ? this.#runnerOf(server).lastWord : this.#servers.lastWord;
  }

  async #run(call: ScriptCall, request: ScriptRequest<unknown>): Promise<unknown> {
    const [name = ''] = request.names;
    for (;;) {
      try {
        const server = await this.#servers.ofName(name);
        return await this.#runnerOf(server).call(request).reply;
      } catch (error) {
        // Redis' own errors about the script are final; a closed connection may be that of a server that is gone.
        const isFinal = error instanceof Error && isReply(error) && !isElsewhere(error);
        if (isFinal || !call.isWanted || this.#servers.isClosed) throw error;
        if (error instanceof Error && isReply(error)) call.lastWord = error;
        await pause(MOVING_PAUSE);
        await this.#servers.lookAgain();
      }
    }
  }

  ready(): Promise<void> | undefined {
    return undefined; // each request looks for its server
  }

  bounded<T>(reply: Promise<T>, keys: readonly ResourceKeys[], timeout?: number): Promise<T> {
    return bounded(reply, keys, Math.min(timeout ?? Infinity, this.#commandTimeout));
  }

  async confirmed(name: string, replicas: number): Promise<number> {
    return this.#runnerOf(await this.#servers.ofName(name)).confirmed(name, replicas);
  }
}

function ignore(): void {
  // Whoever sends it on looks at the reply.
}
