import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import { WakeUps } from '../../lib/redis/wake-ups.js';
import { eventually } from '../support/eventually.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { thisMachine } from '../support/redis/machine.js';
import { privateRedis } from '../support/redis/test-redis.js';
import { slotOf } from './support.js';

const CHANNEL = { name: 'wake:{order}', sharded: true };

describe('a subscription that a cluster ends', () => {
  let folder: string;
  let server: ProvidedRedis;
  let admin: Redis;
  let proxy: Server;
  const sockets = new Set<Socket>();
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cluster-node-'));
    const busPort = await thisMachine().freePort();
    const settings = ['--cluster-enabled', 'yes', '--cluster-port', String(busPort), '--dir', folder];
    server = await privateRedis(settings);
    admin = new Redis(server.url);
    await admin.cluster('ADDSLOTS', ...Array.from({ length: 16_384 }, (_, slot) => slot));
    await eventually(async () => String(await admin.cluster('INFO')).includes('cluster_state:ok'));
    const id = String(await admin.cluster('MYID'));
    let isFirst = true;
    /** The answer to the first subscription, which goes along with what the server says next, as it may. */
    let held: Buffer | undefined;
    proxy = createServer((client) => {
      const upstream = connect(Number(new URL(server.url).port), '127.0.0.1');
      for (const socket of [client, upstream]) {
        sockets.add(socket);
        socket.on('error', () => socket.destroy());
      }
      client.pipe(upstream);
      upstream.on('data', (data) => {
        if (isFirst && data.includes('ssubscribe')) {
          isFirst = false;
          held = data;
          // What an operator says at the end of a move: whoever listens to channels of the slot is sent away.
          void admin.call('CLUSTER', 'SETSLOT', slotOf('order'), 'NODE', id);
          return;
        }
        client.write(held ? Buffer.concat([held, data]) : data);
        held = undefined;
      });
    });
    await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  });
  afterAll(async () => {
    for (const socket of sockets) socket.destroy();
    proxy?.close();
    admin?.disconnect();
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  it('in the packet in which it answers it is made again, before anybody relies on it', async () => {
    const { port } = proxy.address() as AddressInfo;
    const wakeUps = new WakeUps((options) => new Redis({ ...options, port }), 5_000, {
      onWakeUp: () => undefined,
      onSubscribed: () => undefined,
      onMoved: () => undefined,
    });
    await wakeUps.listen(CHANNEL);
    expect(wakeUps.hears(CHANNEL)).toBe(true);
    expect(await admin.call('PUBSUB', 'SHARDCHANNELS')).toEqual([CHANNEL.name]);
    wakeUps.close();
  });
});
