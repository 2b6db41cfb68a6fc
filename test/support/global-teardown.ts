/** Jest global teardown: stops what the global setup provided. */
export default async function globalTeardown(): Promise<void> {
  await globalThis.redisOfTheTestRun?.stop();
}
