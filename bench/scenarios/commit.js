/** Lock, three commands in a transaction, release: by hand in three round trips and unguarded, and as one guarded commit. */
import { randomUUID } from 'node:crypto';
import { crew, summary, WARM_UP } from '../crew.js';
import { connectByHand, startLocks, TTL } from '../subjects.js';

const queue = (multi, id) => multi.incr(`commit:a:${id}`).incr(`commit:b:${id}`).set(`commit:c:${id}`, id);

/** Each as a subject whose sections do everything themselves. */
const subjects = {
  async byHand(url) {
    const redis = connectByHand(url);
    return {
      async section(id, entered) {
        const token = randomUUID();
        if ((await redis.set(`byhand:{${id}}`, token, 'PX', TTL, 'NX')) === null) throw new Error('busy');
        try {
          entered();
          await queue(redis.multi(), id).exec();
        } finally {
          await redis.release(`byhand:{${id}}`, token);
        }
      },
      close: async () => redis.disconnect(),
    };
  },
  async ours(url) {
    const { app, locks } = await startLocks(url);
    return {
      section: (id, entered) =>
        locks.withLock(id, ({ multi }) => {
          entered();
          queue(multi, id);
        }),
      close: () => app.close(),
    };
  },
};

function commit(workers, delayed) {
  return {
    title: `lock, three commands, release, ${workers} callers${delayed ? ', 1 ms of network each way' : ''}`,
    who: ['byHand', 'ours'],
    delayed,
    async measure(url, name, seconds) {
      const subject = await subjects[name](url);
      const task = { resource: 'commit', workers, apart: true };
      await crew(subject, { ...task, seconds: WARM_UP });
      const result = await crew(subject, { ...task, seconds });
      await subject.close();
      return summary([result]);
    },
  };
}

export const commits = [commit(1, false), commit(64, false), commit(1, true)];
