import type { INestApplication } from '@nestjs/common';

/** What a shop tells the process that forked it, once it sells. */
export interface ShopIsOpen {
  port: number;
}

/** A shop that was forked tells its parent the port, and closes when the parent is gone. By hand: does nothing. */
export function belongTo(shop: NodeJS.Process, app: INestApplication, port: number): void {
  if (!shop.send) return;
  shop.once('disconnect', () => void app.close());
  shop.send({ port } satisfies ShopIsOpen);
}
