import { connect, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';

/** A TCP proxy in front of a Redis: a network that takes its time, and can be cut. */
export interface DelayProxy {
  readonly url: string;
  /** Everything takes so many ms longer from now on, in each direction. */
  delay(ms: number): void;
  /**
   * Some of the connections that are open now take so many ms longer in one direction. What they carry arrives in any
   * case, also when its sender has closed the connection by then.
   *
   * @returns ends that for what is sent from then on
   */
  hold(towards: Direction, ms: number, isChosen: (connection: Connection) => boolean): () => void;
  /** Leads new connections to another server. Those that are open stay where they are. */
  leadTo(target: string): void;
  /** Ends all connections. */
  cut(): void;
  close(): Promise<void>;
}

export type Direction = 'server' | 'client';

export interface Connection {
  /** Whether a MULTI was sent on it. */
  hasCommits: boolean;
}

/** What passes in one direction of a connection. */
interface Relay {
  readonly connection: Connection;
  readonly towards: Direction;
  /** ms, beside the delay of all. */
  held: number;
  pass(data: Buffer): void;
  end(): void;
}

export async function startDelayProxy(target: string, ms = 0): Promise<DelayProxy> {
  let { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  const relays = new Set<Relay>();
  let delay = ms;
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    const connection = { hasCommits: false };
    for (const [from, to, towards] of [
      [client, upstream, 'server'],
      [upstream, client, 'client'],
    ] as const) {
      sockets.add(from);
      from.setNoDelay(true);
      const relay = relayTo(to, towards, connection);
      relays.add(relay);
      from.on('data', (data) => relay.pass(data));
      from.on('error', () => from.destroy());
      from.on('close', () => {
        sockets.delete(from);
        relays.delete(relay);
        relay.end();
      });
    }
  });
  /** Keeps the order, also when the delay gets shorter. What is under way arrives, also when its sender is gone by then. */
  const relayTo = (to: Socket, towards: Direction, connection: Connection): Relay => {
    let hasEnded = false;
    const underWay: { readonly data: Buffer; readonly due: number }[] = [];
    const deliver = () => {
      for (let next = underWay[0]; next !== undefined; next = underWay[0]) {
        const left = next.due - performance.now();
        if (left > 0) return void setTimeout(deliver, Math.ceil(left)); // timers may be early
        underWay.shift();
        if (to.writable) to.write(next.data);
      }
      if (hasEnded) to.end(() => to.destroy());
    };
    return {
      connection,
      towards,
      held: 0,
      pass(data: Buffer) {
        if (towards === 'server') connection.hasCommits ||= data.includes('\r\nmulti\r\n');
        const longer = delay + this.held;
        if (longer === 0 && underWay.length === 0) return void to.write(data);
        underWay.push({ data, due: Math.max(underWay.at(-1)?.due ?? 0, performance.now() + longer) });
        if (underWay.length === 1) deliver();
      },
      end() {
        hasEnded = true;
        if (underWay.length === 0) deliver();
      },
    };
  };
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`,
    delay: (longer) => void (delay = longer),
    hold(towards, longer, isChosen) {
      const chosen = [...relays].filter((relay) => relay.towards === towards && isChosen(relay.connection));
      for (const relay of chosen) relay.held = longer;
      return () => {
        for (const relay of chosen) relay.held = 0;
      };
    },
    leadTo: (next) => void ({ hostname, port } = new URL(next)),
    cut() {
      for (const socket of sockets) socket.destroy();
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
