import type { Start } from './machine.js';
import type { ProvidedRedis } from './provide-redis.js';
import { inWords, untilPingAnswers } from './until-ping-answers.js';

const IMAGE = 'redis:7-alpine';
const REDIS_PORT = 6379;
const PROBE_MS = 4_000;

/** Starts a container, or says why not and returns nothing. */
export async function startRedisContainer(start: Start): Promise<Omit<ProvidedRedis, 'source'> | undefined> {
  if (!(await start.machine.containerRuntimeAnswers())) {
    start.say('Redis: no container runtime answers');
    return undefined;
  }
  start.say(`Redis: starting a container of ${IMAGE} (the image may have to be fetched first)`);
  try {
    return await runContainer(start);
  } catch (problem) {
    start.say(`Redis: the container did not start: ${inWords(problem as Error)}`);
    return undefined;
  }
}

async function runContainer(start: Start): Promise<Omit<ProvidedRedis, 'source'>> {
  const { GenericContainer } = await import('testcontainers');
  const container = await new GenericContainer(IMAGE)
    .withExposedPorts(REDIS_PORT)
    .withCommand(['redis-server', '--save', '', '--appendonly', 'no', ...start.arguments])
    .start();
  let stopped: Promise<unknown> | undefined;
  const stop = async () => void (await (stopped ??= container.stop()));

  const url = `redis://${container.getHost()}:${container.getMappedPort(REDIS_PORT)}`;
  try {
    await untilPingAnswers(url, { within: start.within });
    return { url, stop };
  } catch (problem) {
    await stop();
    throw problem;
  }
}

/** A client program without an engine behind it is no runtime, so the engine itself is asked. */
export async function containerRuntimeAnswers(): Promise<boolean> {
  let giveUp: NodeJS.Timeout | undefined;
  try {
    // Imported only here: it is large, and most machines never get this far.
    const { getContainerRuntimeClient } = await import('testcontainers');
    const tooLate = new Promise<false>((resolve) => {
      giveUp = setTimeout(() => resolve(false), PROBE_MS);
    });
    return await Promise.race([getContainerRuntimeClient().then(() => true), tooLate]);
  } catch {
    return false;
  } finally {
    clearTimeout(giveUp);
  }
}
