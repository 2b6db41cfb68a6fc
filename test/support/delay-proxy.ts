import { connect, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';

/** A TCP proxy in front of a Redis: a network that takes its time, and can be cut. */
export interface DelayProxy {
  readonly url: string;
  /** Everything takes so many ms longer from now on, in each direction. */
  delay(ms: number): void;
  /** Ends all connections. */
  cut(): void;
  close(): Promise<void>;
}

export async function startDelayProxy(target: string, ms = 0): Promise<DelayProxy> {
  const { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  let delay = ms;
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(from);
      from.setNoDelay(true);
      const { pass, end } = relay(to);
      from.on('data', pass);
      from.on('error', () => from.destroy());
      from.on('close', () => {
        sockets.delete(from);
        end();
      });
    }
  });
  /** Keeps the order, also when the delay gets shorter. What is under way arrives, also when its sender is gone by then. */
  const relay = (to: Socket) => {
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
      pass(data: Buffer) {
        if (delay === 0 && underWay.length === 0) return void to.write(data);
        underWay.push({ data, due: Math.max(underWay.at(-1)?.due ?? 0, performance.now() + delay) });
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
    cut() {
      for (const socket of sockets) socket.destroy();
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
