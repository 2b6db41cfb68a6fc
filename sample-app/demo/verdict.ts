import type { SaleFigures } from './ledger.js';

export interface Verdict {
  isGood: boolean;
  text: string;
}

/** The demo is good if it shows both: the problem without a lock, and none with it. */
export function verdict(
  tickets: number,
  unprotected: SaleFigures,
  second: SaleFigures,
  withoutLock: boolean,
): Verdict {
  const problems = problemsOf(second, tickets);
  if (problems.length > 0) {
    const why = withoutLock ? ', because its lock was taken away (--without-lock)' : '';
    const text = [
      'In the second run',
      ...problems.map((problem) => `  - ${problem}`),
      `FAILED: the second run did not sell the ${tickets} tickets once each${why}.`,
    ].join('\n');
    return { isGood: false, text };
  }
  const tooMany = oversold(unprotected, tickets);
  if (tooMany === 0) {
    return { isGood: false, text: 'FAILED: the run without a lock did not oversell, so nothing was shown.' };
  }
  if (withoutLock) {
    return { isGood: false, text: 'FAILED: nothing protected the second run; that it went well was luck.' };
  }
  return {
    isGood: true,
    text: `OK: without a lock ${tooMany} tickets too many were sold, with @WithLock exactly the ${tickets} there are.`,
  };
}

/** Orders that there is no ticket for. */
export function oversold({ orders }: SaleFigures, tickets: number): number {
  return Math.max(0, orders.length - tickets);
}

/** Seats for which there is more than one order. */
export function seatsSoldTwice({ orders }: SaleFigures): number {
  const times = new Map<number, number>();
  for (const { seat } of orders) times.set(seat, (times.get(seat) ?? 0) + 1);
  return [...times.values()].filter((count) => count > 1).length;
}

/** Everything that keeps a sale from having sold each ticket there is once, each to another buyer. */
function problemsOf(figures: SaleFigures, tickets: number): string[] {
  const { sold, orders, purchases } = figures;
  const buyers = new Set(orders.map(({ buyer }) => buyer)).size;
  const seats = orders.map(({ seat }) => seat);
  const checks: [holds: boolean, problem: string][] = [
    [sold === tickets, `the stock has ${sold} of ${tickets} tickets as sold`],
    [orders.length === tickets, `${orders.length} orders were recorded for ${tickets} tickets`],
    [new Set(seats).size === seats.length, `${seatsSoldTwice(figures)} seats were sold more than once`],
    [seats.every((seat) => seat >= 1 && seat <= tickets), 'seats were sold that do not exist'],
    [buyers === orders.length, `${orders.length - buyers} orders went to a buyer who had one already`],
    [
      purchases.length === orders.length,
      `${purchases.length} buyers were given a ticket, but ${orders.length} orders recorded`,
    ],
  ];
  return checks.filter(([holds]) => !holds).map(([, problem]) => problem);
}
