/**
 * A sleep, where time itself is what a test is about: until so many ms have passed since an instant of the monotonic clock.
 * Anything else that a test waits for is a condition, see eventually.ts.
 */
export async function elapse(ms: number, since = performance.now()): Promise<void> {
  for (let left = ms; left > 0; left = since + ms - performance.now()) {
    await new Promise((resolve) => setTimeout(resolve, left));
  }
}
