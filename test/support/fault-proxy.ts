import { connect, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';

/** What is to happen, once, to the next request that contains `word`. */
export interface Fault {
  readonly word: string;
  /** Whose bytes are counted: the client's, from the start of that request, or those of the server's answer to it. */
  readonly side: 'request' | 'reply';
  /** How many bytes pass before it happens, given what was sent. */
  readonly at: (sent: Buffer) => number;
  /**
   * cut: the connection ends in both directions, after what has passed. drop: the rest is swallowed, and the
   * connection stays open. split: the rest follows in a packet of its own; delay: 30 ms later.
   */
  readonly how: 'cut' | 'drop' | 'split' | 'delay';
}

/** A TCP proxy in front of a Redis in which a connection can fail at a chosen byte. */
export interface FaultProxy {
  readonly url: string;
  arm(fault: Fault): void;
  /** Leads new connections to another server. */
  leadTo(target: string): void;
  /** Ends all connections. */
  cut(): void;
  /** Whether the fault that was armed last has happened. */
  fired(): boolean;
  close(): Promise<void>;
}

export async function startFaultProxy(target: string): Promise<FaultProxy> {
  let { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  const timers = new Set<NodeJS.Timeout>();
  let armed: Fault | undefined;

  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    let swallowing = false;
    let awaited: Fault | undefined;
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('error', () => socket.destroy());
      socket.on('close', () => {
        sockets.delete(socket);
        other.end();
      });
    }
    const strike = (fault: Fault, data: Buffer, towards: Socket): void => {
      armed = undefined;
      const at = Math.min(fault.at(data), data.length);
      const first = data.subarray(0, at);
      const rest = data.subarray(at);
      if (fault.how === 'cut') {
        towards.end(first); // delivered, and then the end
        (towards === client ? upstream : client).destroy();
        return;
      }
      if (first.length > 0) towards.write(first);
      if (fault.how === 'drop') swallowing = true;
      else if (fault.how === 'split') setImmediate(() => towards.write(rest));
      else {
        const timer = setTimeout(() => {
          timers.delete(timer);
          towards.write(rest);
        }, 30);
        timers.add(timer);
      }
    };
    client.on('data', (data) => {
      if (swallowing) return;
      if (armed === undefined || !data.includes(armed.word)) {
        upstream.write(data);
      } else if (armed.side === 'request') {
        strike(armed, data, upstream);
      } else {
        awaited = armed;
        upstream.write(data);
      }
    });
    upstream.on('data', (data) => {
      if (swallowing) return;
      if (awaited === undefined) {
        client.write(data);
      } else {
        const fault = awaited;
        awaited = undefined;
        strike(fault, data, client);
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`,
    arm: (fault) => void (armed = fault),
    leadTo: (next) => void ({ hostname, port } = new URL(next)),
    cut() {
      for (const socket of sockets) socket.destroy();
    },
    fired: () => armed === undefined,
    async close() {
      for (const timer of timers) clearTimeout(timer);
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** Where each command in a request ends. */
export function commandEnds(request: Buffer): number[] {
  const ends: number[] = [];
  const lineAt = (offset: number) => request.toString('latin1', offset + 1, request.indexOf('\r\n', offset));
  for (let offset = 0; offset < request.length; ends.push(offset)) {
    const parts = Number(lineAt(offset));
    offset = request.indexOf('\r\n', offset) + 2;
    for (let part = 0; part < parts; part += 1) {
      const bytes = Number(lineAt(offset));
      offset = request.indexOf('\r\n', offset) + 2 + bytes + 2;
    }
  }
  return ends;
}
