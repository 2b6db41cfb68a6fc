/** Holders whose leases get longer and shorter: as they say, and by nothing else. */
import type { Lock } from '../../lib/index.js';
import { timeNow } from './history.js';
import { pause } from './setting.js';
import type { Setting } from './setting.js';

/** Extends and shortens its lease, and looks whether Redis has it for as long as the library says. */
export async function stretch(setting: Setting, call: string, wanted: readonly string[]): Promise<void> {
  const { locks, random, recorder } = setting;
  const ttl = random.between(500, 1_500);
  const lock = await locks.acquire(wanted, { wait: Infinity, ttl });
  const end = performance.now() + random.between(300, 2_500);
  try {
    while (performance.now() < end && lock.held) {
      recorder.held(call, lock);
      let limit: number | undefined;
      const chance = random.next();
      if (chance < 0.12) await lock.extend(random.between(1_500, 4_000));
      else if (chance < 0.2) {
        limit = random.between(400, 800);
        await lock.extend(limit);
      }
      await lookAt(setting, call, lock, limit);
      await pause(random.between(10, 60));
    }
  } catch {
    // Redis could not be asked, or the lock is lost: what is told of it still has to be true
    await lookAt(setting, call, lock);
  }
  recorder.held(call, lock);
  await lock.release();
}

/** @param ttl that its holder wants it to last now at most */
async function lookAt({ auditor, recorder }: Setting, call: string, lock: Lock, ttl?: number): Promise<void> {
  const told = timeNow() + lock.remaining;
  const seen = await auditor.look(lock.resources[0] ?? '');
  // One that was passed on inside of a process has the token of the holder before for a while.
  if (seen?.owner !== lock.token || timeNow() + lock.remaining < told - 1) return;
  const [least, most] = [seen.from + seen.left, seen.to + seen.left];
  recorder.lease(call, { told, least, most, ...(ttl === undefined ? {} : { limit: seen.to + ttl }) });
}

/** Has its lock held on to after its release, and looks whether nobody has it before. */
export async function keepFor(setting: Setting, call: string, wanted: readonly string[]): Promise<void> {
  const { locks, random, recorder, auditor } = setting;
  const ttl = random.between(300, 800);
  const minHold = random.between(1_500, 3_000);
  const lock = await locks.acquire(wanted, { wait: Infinity, ttl, minHold });
  // It counts from when it was asked for, or handed over: less than a ttl ago, if it is still held.
  const kept = timeNow() + minHold - ttl - 50;
  if (!lock.held) return lock.release();
  recorder.held(call, lock);
  await pause(random.between(0, 30));
  recorder.held(call, lock);
  await lock.release();
  // The library may not have reached Redis. From when that has it, it has to stay so.
  let told: number | undefined;
  while (timeNow() < kept) {
    const seen = await auditor.look(lock.resources[0] ?? '');
    if (seen?.owner === lock.token) {
      told ??= Math.min(kept, seen.from + seen.left);
      recorder.lease(call, { told, least: seen.from + seen.left, most: seen.to + seen.left });
    } else if (seen && told !== undefined) {
      recorder.lease(call, { told, least: seen.from, most: seen.to });
    }
    await pause(40);
  }
}
