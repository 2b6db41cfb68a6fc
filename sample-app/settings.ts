import type { LogLevel } from '@nestjs/common';

const { PORT, REDIS_URL, SHOP_LOG_LEVELS, SHOP_WITHOUT_LOCK } = process.env;

/** What the shop takes from its environment. */
export const settings = {
  /** 0: any free port. */
  port: Number(PORT || 3000),
  redisUrl: REDIS_URL || 'redis://localhost:6379',
  logLevels: (SHOP_LOG_LEVELS || 'log,warn,error,fatal').split(',') as LogLevel[],
  /** For the demo, which shows what happens then. */
  withoutLock: SHOP_WITHOUT_LOCK === 'yes',
};
