import { script } from './script-parts.js';

/**
 * Lets a commit pass only if the token owns every resource and this very commit was not applied before. Sent as
 * text, before MULTI, with its keys under WATCH. See docs/guarded-commit.md for why that is sound.
 *
 * KEYS    owner of each resource, then the fence of the first
 * ARGV    1 record of the commit, 2 its field, 3 fencing token of the first resource, then the token that has to own
 *         each resource
 * Returns 1 (pass) or 0 (refused)
 * Invariant: unless it answers 1, it has touched the fence, and EXEC is refused because that is watched. It
 * touches with HSET, which the transaction queues as well: whatever refuses it here refuses it there.
 * A fence that was deleted under the lock is made anew, with an end; that refuses this EXEC too, and not the next.
 */
export const GUARD = script(`
  local try, fence, pass = redis.pcall, KEYS[#KEYS], true
  for i = 1, #KEYS - 1 do pass = pass and try('GET', KEYS[i]) == ARGV[i + 3] end
  local is = pass and try('HMGET', fence, ARGV[2], 'last')
  pass = pass and not is.err and is[1] ~= ARGV[1]
  if pass and is[2] then return 1 end
  if pass then try('HSET', fence, 'last', ARGV[3], 'since', ARGV[3]) end
  try('HSET', fence, 'guard', ARGV[1])
  try('PEXPIRE', fence, math.max(60000, tonumber(try('PTTL', fence)) or 0)) -- of whatever type it is
  return pass and 1 or 0
`);

/**
 * Queued in the transaction, where it does nothing: whatever refuses the guard, which names the same keys, refuses it
 * when it is queued, and with it the transaction.
 */
export const SAME_KEYS = 'return 1';
