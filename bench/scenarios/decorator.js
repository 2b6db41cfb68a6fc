/** What `@WithLock` costs over `locks.withLock`: the same locks, asked for in both ways in turn. */
import { startLocks } from '../subjects.js';
import { WithLock } from 'nestjs-redis-lock';

const ROUNDS = 15;

class Decorated {
  async buy() {}
}
const descriptor = Object.getOwnPropertyDescriptor(Decorated.prototype, 'buy');
WithLock('decorated:<0>')(Decorated.prototype, 'buy', descriptor);
Object.defineProperty(Decorated.prototype, 'buy', descriptor);

/** @returns the median, over rounds, of decorator over service, in calls per second */
export async function decorator(url, callers, calls) {
  const decorated = new Decorated();
  const { app, locks } = await startLocks(url, {}, [{ provide: 'decorated', useValue: decorated }]);
  const perSecond = async (call) => {
    const start = performance.now();
    await Promise.all(
      Array.from({ length: callers }, async (_, caller) => {
        for (let i = 0; i < calls; i += 1) await call(`${caller}`);
      }),
    );
    return (callers * calls * 1_000) / (performance.now() - start);
  };
  const byDecorator = () => perSecond((id) => decorated.buy(id));
  const byService = () => perSecond((id) => locks.withLock(`decorated:${id}`, async () => undefined));
  await byDecorator();
  await byService();
  const ratios = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    // Whoever comes first in a round comes second in the next.
    const first = round % 2 ? await byDecorator() : await byService();
    const second = round % 2 ? await byService() : await byDecorator();
    ratios.push(round % 2 ? first / second : second / first);
  }
  await app.close();
  ratios.sort((a, b) => a - b);
  return {
    callers,
    decoratorOverService: ratios[Math.floor(ROUNDS / 2)],
    spread: [ratios[0], ratios.at(-1)],
  };
}
