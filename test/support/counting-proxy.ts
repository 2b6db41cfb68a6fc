import { connect, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';

/** A TCP proxy in front of a Redis that counts round trips and can keep replies back. */
export interface CountingProxy {
  readonly url: string;
  /** How often a client sent something after it had heard from the server, over all connections. */
  roundTrips(): number;
  reset(): void;
  /** Cuts every connection as soon as the server has answered on it, without passing the answer on. */
  dropNextReply(): void;
  /** Cuts the connections on which clients have sent this word. */
  cut(word: string): void;
  /** Keeps back whatever the server says, on connections where clients have sent this word, until {@link passReplies}. */
  holdReplies(word?: string): void;
  passReplies(): void;
  /** Keeps back what clients send and contains this word, and everything after it on the same connection. */
  holdRequestsWith(word: string): void;
  /** Whether any are kept back. */
  holdsRequests(): boolean;
  /** Sends what was kept back, even if the client is gone by now: as if it had been under way all the time. */
  passRequests(): void;
  /** How many connections clients have open. */
  clients(): number;
  close(): Promise<void>;
}

export async function startCountingProxy(target: string): Promise<CountingProxy> {
  const { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  let roundTrips = 0;
  let dropping = false;
  let holding: string | undefined;
  let held: (() => void)[] = [];
  let heldWord: string | undefined;
  let heldRequests: (() => void)[] = [];

  const unstick: (() => void)[] = [];
  const clients = new Set<Socket>();
  const cuts = new Set<(word: string) => void>();
  const server = createServer((client) => {
    clients.add(client);
    client.on('close', () => clients.delete(client));
    const upstream = connect(Number(port), hostname);
    let mayCount = true;
    let stuck = false;
    let said = '';
    unstick.push(() => (stuck = false));
    cuts.add((word) => {
      if (said.includes(word)) client.destroy();
    });
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('error', () => socket.destroy());
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        if (!stuck) upstream.destroy();
      });
    }
    client.on('data', (data) => {
      said += data.toString('latin1').slice(0, 2_000);
      if (mayCount) roundTrips += 1;
      mayCount = false;
      if (heldWord !== undefined && data.includes(heldWord)) stuck = true;
      if (stuck) heldRequests.push(() => upstream.write(data));
      else upstream.write(data);
    });
    upstream.on('data', (data) => {
      mayCount = true;
      if (dropping) {
        dropping = false;
        client.destroy();
        return;
      }
      if (holding !== undefined && said.includes(holding)) held.push(() => client.write(data));
      else client.write(data);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`,
    roundTrips: () => roundTrips,
    reset: () => void (roundTrips = 0),
    dropNextReply: () => void (dropping = true),
    holdReplies: (word = '') => void (holding = word),
    cut(word) {
      for (const cut of cuts) cut(word);
    },
    passReplies() {
      holding = undefined;
      for (const pass of held) pass();
      held = [];
    },
    holdRequestsWith: (word) => void (heldWord = word),
    holdsRequests: () => heldRequests.length > 0,
    passRequests() {
      heldWord = undefined;
      for (const free of unstick) free();
      for (const pass of heldRequests) pass();
      heldRequests = [];
    },
    clients: () => clients.size,
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
