import type { SaleFigures } from './ledger.js';
import { oversold, seatsSoldTwice } from './verdict.js';

export interface Run {
  title: string;
  seconds: number;
  figures: SaleFigures;
}

/** One column per run, one line per figure. */
export function table(tickets: number, runs: readonly Run[]): string {
  const lines: [name: string, cell: (run: Run) => string | number][] = [
    ['', ({ title }) => title],
    ['tickets there are', () => tickets],
    ['orders recorded', ({ figures }) => figures.orders.length],
    ['oversold', ({ figures }) => oversold(figures, tickets)],
    ['tickets sold, by the stock', ({ figures }) => figures.sold],
    ['seats sold more than once', ({ figures }) => seatsSoldTwice(figures)],
    ['buyers told "sold out" (410)', ({ figures }) => figures.soldOut],
    ['buyers who gave up', ({ figures }) => figures.gaveUp],
    ['answers "locked, come back" (423)', ({ figures }) => figures.busy],
    ['purchase, p50 in ms', ({ figures }) => percentile(figures.purchases, 50)],
    ['purchase, p99 in ms', ({ figures }) => percentile(figures.purchases, 99)],
    ['seconds', ({ seconds }) => seconds.toFixed(1)],
  ];
  const cells = lines.map(([name, cell]) => [name, ...runs.map((run) => String(cell(run)))]);
  const width = (column: number) => Math.max(...cells.map((line) => line[column]?.length ?? 0));
  const text = cells.map(([name = '', ...rest]) =>
    [name.padEnd(width(0)), ...rest.map((cell, i) => cell.padStart(width(i + 1)))].join('   '),
  );
  const [head = '', ...body] = text;
  return [head, '-'.repeat(head.length), ...body].join('\n');
}

/** Nearest rank. */
function percentile(ascending: readonly number[], percent: number): string {
  const value = ascending[Math.ceil((percent / 100) * ascending.length) - 1];
  return value === undefined ? '-' : value.toFixed(0);
}
