/** Seconds before it counts: Node has compiled what runs often by then, of whichever subject. */
export const WARM_UP = 1;

/** Workers of one process, for a while: they all want the same lock, or each one of its own. */
export async function crew(subject, { resource, workers, seconds, work = () => undefined, apart = false }) {
  const end = performance.now() + seconds * 1_000;
  const turns = Array.from({ length: workers }, () => 0);
  const waits = [];
  await Promise.all(
    turns.map(async (_, worker) => {
      const name = apart ? `${resource}:${process.pid}:${worker}` : resource;
      while (performance.now() < end) {
        const asked = performance.now();
        await subject.section(name, () => {
          waits.push(performance.now() - asked);
          turns[worker] += 1;
          return work();
        });
      }
    }),
  );
  return { turns, waits, seconds };
}

/** @returns sections per second, the fewest turns of a worker in relation to the most, and how long they waited, in ms */
export function summary(crews) {
  const turns = crews.flatMap((each) => each.turns);
  const waits = crews.flatMap((each) => each.waits).sort((a, b) => a - b);
  const at = (part) => waits[Math.min(waits.length - 1, Math.floor(waits.length * part))];
  return {
    opsPerSecond: turns.reduce((sum, each) => sum + each, 0) / crews[0].seconds,
    p50: at(0.5),
    p99: at(0.99),
    max: waits.at(-1),
    fairness: Math.min(...turns) / Math.max(...turns),
  };
}
