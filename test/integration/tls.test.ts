import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Redis } from 'ioredis';
import type { RedisOptions } from 'ioredis';
import { eventually } from '../support/eventually.js';
import { startLocks } from '../support/lock-application.js';
import { findOnPath } from '../support/redis/find-on-path.js';
import { thisMachine } from '../support/redis/machine.js';
import type { ProvidedRedis } from '../support/redis/provide-redis.js';
import { privateRedis } from '../support/redis/test-redis.js';

const run = promisify(execFile);

const openssl = findOnPath(['openssl'], process.env);
if (openssl === undefined)
  console.info('Locks behind TLS are not tested: there is no openssl to make a certificate');

(openssl === undefined ? describe.skip : describe)(
  'a Redis behind TLS, with password, database and prefix',
  () => {
    let folder: string;
    let server: ProvidedRedis;
    let plain: Redis;
    let options: RedisOptions;

    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'tls-'));
      const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')];
      const certificate = '-x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext'.split(' ');
      const names = 'subjectAltName=DNS:localhost,IP:127.0.0.1';
      await run(openssl ?? '', ['req', ...certificate, names, '-keyout', key, '-out', cert]);
      const port = await thisMachine().freePort();
      const settings = {
        'tls-port': String(port),
        'tls-cert-file': cert,
        'tls-key-file': key,
        'tls-ca-cert-file': cert,
        'tls-auth-clients': 'no',
      };
      server = await privateRedis(Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]));
      plain = new Redis(server.url, { db: 3 });
      await plain.acl('SETUSER', 'app', 'on', '>secret', '~*', '&*', '+@all');
      options = {
        host: '127.0.0.1',
        port,
        tls: { ca: await readFile(cert) },
        username: 'app',
        password: 'secret',
        db: 3,
        keyPrefix: 'app:',
      };
    });
    afterAll(async () => {
      plain?.disconnect();
      await server?.stop();
      await rm(folder, { recursive: true, force: true });
    });

    it.each([
      ['options of ours', () => options],
      ['a client of the application', () => new Redis(options)],
    ])(
      'is locked, waited for, committed to and watched on all connections: %s',
      async (_how, connectionOf) => {
        const connection = connectionOf();
        const one = await startLocks({ url: server.url, connection, keyPrefix: 'tls' });
        const other = await startLocks({ url: server.url, connection, keyPrefix: 'tls' });
        const held = await one.locks.acquire('job');
        expect(await plain.get('app:tls:{job}')).toBe(held.token);
        const waiting = other.locks.withLock('job', { wait: 5_000 }, async ({ watch, multi, redis }) => {
          await watch('data');
          multi.set('data', `${(await redis.get('data')) ?? ''}x`);
        });
        await eventually(async () => (await plain.zcard('app:tls:queue:{job}')) === 1);
        await held.release();
        await waiting;
        expect(await plain.get('app:data')).toBe('x');
        const clients = String(await plain.client('LIST'))
          .trim()
          .split('\n');
        const theirs = clients.filter((line) => line.includes('user=app'));
        expect(theirs.length).toBeGreaterThan(5);
        expect(theirs.filter((line) => !/ db=3 /.test(line) && !/ sub=1 /.test(line))).toEqual([]);
        await plain.flushdb();
        await one.app.close();
        await other.app.close();
        for (const { redis } of [one, other]) redis.disconnect();
        if (connection instanceof Redis) {
          expect(await connection.ping()).toBe('PONG'); // it was only borrowed
          connection.disconnect();
        }
      },
    );
  },
);
