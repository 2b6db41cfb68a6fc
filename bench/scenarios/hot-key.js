/** One lock that everybody wants: how many sections pass, how fair that is, and how long the unluckiest waits. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { crew, summary } from '../crew.js';
import { subjects } from '../subjects.js';

const CREW_PROCESS = fileURLToPath(new URL('../crew-process.js', import.meta.url));

export const oneProcess = {
  title: 'one hot key, 8 workers in a process',
  async measure(url, name, seconds) {
    const subject = await subjects[name].start(url);
    await crew(subject, 'hot:warm-up', 8, 0.2);
    const result = await crew(subject, 'hot', 8, seconds);
    await subject.close();
    return summary([result]);
  },
};

export const fourProcesses = {
  title: 'one hot key, 4 processes with 4 workers each',
  async measure(url, name, seconds) {
    const processes = Array.from({ length: 4 }, () => fork(CREW_PROCESS, [url, name, 'hot4', 4, seconds]));
    await Promise.all(processes.map((each) => once(each, 'message')));
    const results = processes.map((each) => once(each, 'message'));
    for (const each of processes) each.send('start');
    const crews = (await Promise.all(results)).map(([result]) => result);
    await Promise.all(processes.map((each) => (each.exitCode === null ? once(each, 'exit') : undefined)));
    return summary(crews);
  },
};
