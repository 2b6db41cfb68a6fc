/** Workers of one process that all want the same lock, for a while. */
export async function crew(subject, resource, workers, seconds) {
  const end = performance.now() + seconds * 1_000;
  const turns = Array.from({ length: workers }, () => 0);
  const waits = [];
  await Promise.all(
    turns.map(async (_, worker) => {
      while (performance.now() < end) {
        const asked = performance.now();
        await subject.section(resource, () => {
          waits.push(performance.now() - asked);
          turns[worker] += 1;
        });
      }
    }),
  );
  return { turns, waits, seconds };
}

/** @returns sections per second, the fewest turns of a worker in relation to the most, and the longest wait in ms */
export function summary(crews) {
  const turns = crews.flatMap((each) => each.turns);
  const waits = crews.flatMap((each) => each.waits).sort((a, b) => a - b);
  return {
    perSecond: turns.reduce((sum, each) => sum + each, 0) / crews[0].seconds,
    fairness: Math.min(...turns) / Math.max(...turns),
    p50: waits[Math.floor(waits.length / 2)],
    worst: waits.at(-1),
  };
}
