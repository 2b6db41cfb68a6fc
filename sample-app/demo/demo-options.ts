import { parseArgs } from 'node:util';

export interface DemoOptions {
  buyers: number;
  tickets: number;
  /** Takes the lock away from the second run, to show that it is the lock that matters. */
  withoutLock: boolean;
}

export const USAGE = 'Usage: npm run demo -- [--without-lock] [--buyers 600] [--tickets 100]';

/** @throws Error naming the argument that is wrong */
export function demoOptions(args: readonly string[]): DemoOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      'without-lock': { type: 'boolean', default: false },
      buyers: { type: 'string', default: '600' },
      tickets: { type: 'string', default: '100' },
    },
  });
  const options = {
    buyers: count('--buyers', values.buyers),
    tickets: count('--tickets', values.tickets),
    withoutLock: values['without-lock'],
  };
  if (options.buyers <= options.tickets) {
    throw new Error('--buyers must be more than --tickets: otherwise there is nothing to compete for');
  }
  return options;
}

function count(name: string, text: string): number {
  if (/^[1-9]\d{0,5}$/.test(text)) return Number(text);
  throw new Error(`${name} must be an integer from 1 to 999999; got "${text}"`);
}
