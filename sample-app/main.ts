/**
 * The ticket shop. By hand, after `npm run build:sample` and with a Redis at REDIS_URL or localhost:6379:
 *
 *   redis-cli set '{concert:7}:stock' 100
 *   PORT=3000 node sample-app/dist/sample-app/main.js
 *   curl -X POST http://127.0.0.1:3000/concerts/7/orders/ann
 */
import { NestFactory } from '@nestjs/core';
import { AppModule } from './app.module.js';
import { belongTo } from './parent-process.js';
import { settings } from './settings.js';

const app = await NestFactory.create(AppModule, { logger: settings.logLevels });

// On SIGTERM, purchases under way are finished and locks given back before the process ends.
app.enableShutdownHooks();

await app.listen(settings.port, '127.0.0.1');
belongTo(process, app, Number(new URL(await app.getUrl()).port));
