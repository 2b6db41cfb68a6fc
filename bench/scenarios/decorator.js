/** What `@WithLock` costs over `locks.withLock`: the same locks, asked for in both ways. */
import { crew, summary, WARM_UP } from '../crew.js';
import { startLocks } from '../subjects.js';
import { WithLock } from '../../dist/index.js';

class Decorated {
  async buy(_id, entered) {
    entered();
  }
}
const descriptor = Object.getOwnPropertyDescriptor(Decorated.prototype, 'buy');
WithLock('decorated:<0>')(Decorated.prototype, 'buy', descriptor);
Object.defineProperty(Decorated.prototype, 'buy', descriptor);

function compared(workers) {
  return {
    title: `the decorator and the service, ${workers} callers`,
    who: ['service', 'ours'],
    delayed: false,
    async measure(url, name, seconds) {
      const decorated = new Decorated();
      const { app, locks } = await startLocks(url, {}, [{ provide: 'decorated', useValue: decorated }]);
      const section =
        name === 'ours'
          ? (id, entered) => decorated.buy(id, entered)
          : (id, entered) => locks.withLock(`decorated:${id}`, async () => entered());
      const task = { resource: 'decorated', workers, apart: true };
      await crew({ section }, { ...task, seconds: WARM_UP });
      const result = await crew({ section }, { ...task, seconds });
      await app.close();
      return summary([result]);
    },
  };
}

export const decorators = [compared(1), compared(64)];
