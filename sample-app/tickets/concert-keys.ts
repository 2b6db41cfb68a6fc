/**
 * Where Redis has a concert's tickets. The part in braces is the resource that TicketsService locks, as
 * `LockContext.key()` has it too: in a cluster, the lock and what it protects then share a slot.
 */
export function concertKeys(concertId: string) {
  return {
    /** How many tickets are left. */
    stock: `{concert:${concertId}}:stock`,
    /** List of the orders, as JSON. */
    orders: `{concert:${concertId}}:orders`,
  };
}
