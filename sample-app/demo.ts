/** `npm run demo`: sells the same tickets without a lock and with one, and shows the difference. */
import { randomUUID } from 'node:crypto';
import { provideRedis } from '../test/support/redis/provide-redis.js';
import { letBuyersGo } from './demo/buyers.js';
import { demoOptions, USAGE } from './demo/demo-options.js';
import type { DemoOptions } from './demo/demo-options.js';
import { Ledger } from './demo/ledger.js';
import { ShopProcesses } from './demo/shop-processes.js';
import { table } from './demo/table.js';
import type { Run } from './demo/table.js';
import { verdict } from './demo/verdict.js';

const SHOPS = 3;

process.exitCode = await main();

async function main(): Promise<number> {
  let options: DemoOptions;
  try {
    options = demoOptions(process.argv.slice(2));
  } catch (error) {
    console.error(`${(error as Error).message}\n${USAGE}`);
    return 2;
  }
  try {
    return await demo(options);
  } catch (error) {
    console.error(`The demo failed: ${(error as Error).message}`);
    return 1;
  }
}

/** @returns the exit code */
async function demo(options: DemoOptions): Promise<number> {
  const redis = await provideRedis();
  const stop = new AbortController();
  const ledger = new Ledger(redis.url);
  const shops = new ShopProcesses(stop);
  // Only from here on is there anything to clean up: a Redis that was started ends with this process anyway.
  const interrupted = stopOnSignals(stop);
  const failures = new Set<string>();
  const note = (error: Error) => void failures.add(error.message);

  const exitCode = await compare(options, redis.url, { ledger, shops, stop }).catch(note);
  // In this order: only when the shops have ended does nobody write to Redis any more.
  await shops.close().catch(note);
  await ledger
    .close()
    .catch((error: Error) => note(new Error(`Keys may be left in Redis: ${error.message}`)));
  await redis.stop();

  if (interrupted()) {
    console.error('The demo was stopped.');
    return 130;
  }
  for (const mishap of shops.mishaps) failures.add(mishap);
  if (failures.size > 0) throw new Error([...failures].join('\n'));
  return exitCode ?? 1;
}

interface Stage {
  ledger: Ledger;
  shops: ShopProcesses;
  stop: AbortController;
}

async function compare(
  { buyers, tickets, withoutLock }: DemoOptions,
  url: string,
  stage: Stage,
): Promise<number> {
  const { ledger, shops, stop } = stage;
  const addresses = await shops.open(SHOPS, {
    ...process.env,
    PORT: '0',
    REDIS_URL: url,
    SHOP_LOG_LEVELS: 'warn,error,fatal',
    SHOP_WITHOUT_LOCK: withoutLock ? 'yes' : 'no',
  });
  console.log(
    `${buyers} buyers want ${tickets} tickets, from ${SHOPS} instances of a shop that share one Redis. Each reads\n` +
      'what is left, takes the payment, then writes the order: first without a lock, then in line for one.\n',
  );
  const sale = async (title: string, route: string): Promise<Run> => {
    const concertId = `demo-${randomUUID()}`;
    await ledger.putOnSale(concertId, tickets);
    const start = performance.now();
    await letBuyersGo({
      shops: addresses,
      path: (buyer) => `/concerts/${concertId}/${route}/${buyer}`,
      buyers,
      note: (visit) => ledger.note(concertId, visit),
      stop,
    });
    const seconds = (performance.now() - start) / 1_000;
    return { title, seconds, figures: await ledger.figures(concertId, tickets) };
  };
  const first = await sale('without a lock', 'unprotected-orders');
  const second = await sale(withoutLock ? 'lock taken away' : 'with @WithLock', 'orders');

  const { isGood, text } = verdict(tickets, first.figures, second.figures, withoutLock);
  console.log(`${table(tickets, [first, second])}\n\n${text}`);
  return isGood ? 0 : 1;
}

/** @returns whether a signal has come */
function stopOnSignals(stop: AbortController): () => boolean {
  let interrupted = false;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    // For good, not once: a second Ctrl-C must not cut the cleaning up short.
    process.on(signal, () => {
      interrupted = true;
      stop.abort(new Error(`Stopped by ${signal}`));
    });
  }
  return () => interrupted;
}
