/** A process with a crew, for scenarios over several processes: tells when it is ready, starts when it is told to. */
import { crew, WARM_UP } from './crew.js';
import { subjects } from './subjects.js';

const { url, name, resource, workers, seconds, sectionMs } = JSON.parse(process.argv[2]);
const work = sectionMs ? () => new Promise((resolve) => setTimeout(resolve, sectionMs)) : undefined;
const subject = await subjects[name].start(url);
await crew(subject, { resource: `${resource}:warm-up`, workers, seconds: WARM_UP });
process.send('ready');
process.once('message', async () => {
  const result = await crew(subject, { resource, workers, seconds, work });
  process.send(result, async () => {
    await subject.close();
    process.disconnect();
  });
});
