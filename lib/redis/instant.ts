/** An instant on both clocks: the monotonic one stands still while a machine sleeps, the wall clock can jump. */
export class Instant {
  constructor(
    readonly monotonic: number,
    readonly wall: number,
  ) {}
}

export function now(): Instant {
  return new Instant(performance.now(), Date.now());
}

/** ms since the instant; the larger of the two clocks' words, so that a lease is never believed in for too long. */
export function elapsedSince(instant: Instant): number {
  return Math.max(performance.now() - instant.monotonic, Date.now() - instant.wall);
}
