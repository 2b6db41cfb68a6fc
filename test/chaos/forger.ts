/**
 * Somebody who may use the channels of Redis and nothing else: hears what is said there, and says what was not. What
 * messages look like is the library's business: he knows that there are names and numbers in them, and tries.
 */
import { createHash } from 'node:crypto';
import { Redis } from 'ioredis';
import type { Random } from './random.js';

/** Has no right on any key, nor on any other command. */
export const FORGER = {
  name: 'forger',
  rules:
    'forger on nopass resetkeys &* -@all +publish +subscribe +psubscribe +unsubscribe +pubsub|channels +ping'.split(
      ' ',
    ),
} as const;

interface Message {
  readonly channel: string;
  readonly text: string;
}

/** The latest ones, of which there may be thousands. */
const REMEMBERED = 300;
const AT_ONCE = 8;
const SEPARATORS = /[ :|/,"[\]]/;

/**
 * Forges for so many ms, on all channels whose names begin so.
 *
 * @param said called now and then, as soon as something was said
 */
export async function forge(
  url: string,
  prefix: string,
  random: Random,
  ms: number,
  said: () => Promise<void>,
): Promise<void> {
  const options = {
    username: FORGER.name,
    password: '',
    protocol: 2,
    enableReadyCheck: false,
    disconnectTimeout: 0,
    maxRetriesPerRequest: null,
  } as const;
  const [ear, mouth] = [new Redis(url, options), new Redis(url, options)];
  for (const redis of [ear, mouth]) redis.on('error', () => undefined); // what it cannot say it says later
  const heard: Message[] = [];
  const own = new Set<string>();
  ear.on('pmessage', (_pattern, channel: string, text: string) => {
    if (own.has(text)) return;
    heard.push({ channel, text });
    if (heard.length > REMEMBERED) heard.shift();
  });
  const until = performance.now() + ms;
  try {
    await ear.psubscribe(`${prefix}*`);
    while (performance.now() < until) {
      const channels = (await mouth.pubsub('CHANNELS', `${prefix}*`)) as string[];
      const lies = Array.from({ length: AT_ONCE }, () => lie(random, heard, channels)).filter(
        (one) => one !== undefined,
      );
      for (const { text } of lies) own.add(text);
      const told = lies.map(({ channel, text }) => mouth.publish(channel, text).catch(() => undefined));
      if (random.next() < 0.2) await said();
      await Promise.all(told);
      await new Promise((resolve) => setTimeout(resolve, random.between(1, 15)));
    }
  } finally {
    ear.disconnect();
    mouth.disconnect();
  }
}

function lie(random: Random, heard: readonly Message[], channels: readonly string[]): Message | undefined {
  if (channels.length === 0) return undefined;
  if (heard.length === 0 || random.next() < 0.3) return guess(random, heard, random.pick(channels));
  const { channel, text } = random.pick(heard.slice(-random.pick([5, 50, REMEMBERED])));
  const change = random.pick([same, otherNumber, otherNumber, higherLast, swapped, shorter, together]);
  const changed = change(text, random, heard);
  if (random.next() < 0.8) return { channel, text: changed };
  // What was meant for one process, for another one: under its name, where names are in there.
  const other = random.pick(channels);
  return { channel: other, text: changed.replaceAll(nameOf(channel), nameOf(other)) };
}

/** The last part of a channel's name is the client's. */
function nameOf(channel: string): string {
  return channel.slice(channel.lastIndexOf(':') + 1);
}

/** A token as it can be made up: the client's name, a sequence number, a ttl; and a number from far above. */
function guess(random: Random, heard: readonly Message[], channel: string): Message {
  const name = nameOf(channel);
  const sequences = heard
    .filter((message) => message.channel === channel)
    .flatMap(({ text }) => text.split(SEPARATORS).map(Number))
    .filter((number) => number > 0 && number < 1_000_000);
  const latest = Math.max(1, ...sequences.slice(-20).filter((number) => number !== 1_000));
  const sequence = Math.max(1, latest + random.between(-10, 20));
  const ttl = random.pick([1_000, 1_000, 150, 500]);
  const number = random.pick([Number.MAX_SAFE_INTEGER, Date.now() * 1_000 + 5_000_000]);
  const waiter = `${name}:${sequence}:${ttl}`;
  const [, , , , owner = 'lock:{hot}'] = partsOf(heard.at(-1)?.text ?? '[]');
  const seals = [waiter, `${number}\n\n${owner}\n${waiter}`, ''].map((text) =>
    createHash('sha1').update(text).digest('hex'),
  );
  const parts = [waiter, String(number), random.pick(seals), random.pick(['', waiter]), owner];
  return {
    channel,
    text: random.pick([`${waiter} ${number}`, JSON.stringify(parts), JSON.stringify(parts)]),
  };
}

function partsOf(text: string): string[] {
  try {
    const parts: unknown = JSON.parse(text);
    return Array.isArray(parts) ? parts.map(String) : [text];
  } catch {
    return [text];
  }
}

function same(text: string): string {
  return text;
}

function otherNumber(text: string, random: Random): string {
  const numbers = [...text.matchAll(/\d+/g)];
  if (numbers.length === 0) return text;
  const { 0: number, index } = random.pick(numbers);
  const other = String(Math.max(0, Number(number) + random.pick([-2, -1, 1, 1, 2, 3, 5, 64, 65, 1_000_000])));
  return `${text.slice(0, index)}${other}${text.slice(index + number.length)}`;
}

/** All numbers of the size of a fencing token. */
function higherLast(text: string, random: Random): string {
  const more = random.pick([1, 64, 65, 1_000_000, 60_000_000]);
  return text.replaceAll(/\b\d{13,17}\b/g, (number) => String(Number(number) + more));
}

function swapped(text: string, random: Random): string {
  return JSON.stringify(random.shuffled(partsOf(text)));
}

function shorter(text: string, random: Random): string {
  const parts = partsOf(text);
  return JSON.stringify(parts.slice(0, random.between(1, parts.length)));
}

/** Who is meant from one message, the rest from another. */
function together(text: string, random: Random, heard: readonly Message[]): string {
  const [first = ''] = partsOf(random.pick(heard).text);
  return JSON.stringify([first, ...partsOf(text).slice(1)]);
}
