/** Sections under a lock, as many as pass: each caller with a lock of its own, or all with the same. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { crew, summary, WARM_UP } from '../crew.js';
import { subjects } from '../subjects.js';

const CREW_PROCESS = fileURLToPath(new URL('../crew-process.js', import.meta.url));
const EVERYBODY = Object.keys(subjects);

function inOneProcess({ title, workers, sectionMs, apart = false, who = EVERYBODY, delayed = false }) {
  const work = sectionMs ? () => new Promise((resolve) => setTimeout(resolve, sectionMs)) : undefined;
  return {
    title,
    who,
    delayed,
    async measure(url, name, seconds) {
      const subject = await subjects[name].start(url);
      const task = { resource: `bench:${title}`, workers, work, apart };
      await crew(subject, { ...task, seconds: WARM_UP });
      const result = await crew(subject, { ...task, seconds });
      await subject.close();
      return summary([result]);
    },
  };
}

function inFourProcesses({ title, workers, sectionMs, who = EVERYBODY }) {
  return {
    title,
    who,
    delayed: false,
    async measure(url, name, seconds) {
      const task = JSON.stringify({ url, name, resource: `bench:${title}`, workers, seconds, sectionMs });
      const processes = Array.from({ length: 4 }, () => fork(CREW_PROCESS, [task]));
      await Promise.all(processes.map((each) => once(each, 'message')));
      const results = processes.map((each) => once(each, 'message'));
      for (const each of processes) each.send('start');
      const crews = (await Promise.all(results)).map(([result]) => result);
      await Promise.all(processes.map((each) => (each.exitCode === null ? once(each, 'exit') : undefined)));
      return summary(crews);
    },
  };
}

export const sections = [
  ...[1, 64, 512].map((workers) =>
    inOneProcess({ title: `${workers} callers, each with a lock of its own`, workers, apart: true }),
  ),
  inOneProcess({ title: 'one hot lock, 8 workers in a process', workers: 8 }),
  inFourProcesses({ title: 'one hot lock, 4 processes with 4 workers each', workers: 4 }),
  inOneProcess({ title: 'one hot lock, sections of 5 ms, 8 workers in a process', workers: 8, sectionMs: 5 }),
  inFourProcesses({
    title: 'one hot lock, sections of 5 ms, 4 processes with 4 workers each',
    workers: 4,
    sectionMs: 5,
    who: ['byHand', 'ours'],
  }),
  ...[1, 64].map((workers) =>
    inOneProcess({
      title: `${workers} callers, each with a lock of its own, 1 ms of network each way`,
      workers,
      apart: true,
      who: ['byHand', 'ours'],
      delayed: true,
    }),
  ),
];
