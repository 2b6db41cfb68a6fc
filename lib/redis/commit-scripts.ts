import { GRANT, HAND_OVER, TOKEN, script } from './script-parts.js';

/** Commits a resource remembers at least, so that a lost reply can be settled. */
const COMMIT_LOG_BYTES = 5_120; // 64 records of the longest possible token, 80 bytes each

/**
 * Lets a commit pass only if the token owns every resource and this very commit was not applied before. Sent as
 * text, before MULTI, with its keys under WATCH. See docs/guarded-commit.md for why that is sound.
 *
 * KEYS    owner of each resource, then the fence of the first
 * ARGV    1 commit id, then the token that has to own each resource
 * Returns 1 (pass) or 0 (refused)
 * Invariant: unless it answers 1, it has touched the fence, and EXEC is refused because that is watched. It
 * touches with HSET, which the transaction queues as well: whatever refuses it here refuses it there.
 */
export const GUARD = script(`
  local fence, pass = KEYS[#KEYS], true
  for i = 1, #KEYS - 1 do pass = pass and redis.pcall('GET', KEYS[i]) == ARGV[i + 1] end
  local log = pass and redis.pcall('HGET', fence, 'commits')
  if pass and (not log or type(log) == 'string' and not string.find(log, '=' .. ARGV[1] .. ' ', 1, true)) then return 1 end
  redis.pcall('HSET', fence, 'guard', ARGV[1])
  redis.pcall('PEXPIRE', fence, math.max(60000, tonumber(redis.pcall('PTTL', fence)) or 0)) -- of whatever type it is
  return 0
`);

/**
 * Inside the transaction: records the commit and gives the lock up.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token, 2 commit id, 3 fencing token of the first resource, 4 '1' to keep the lock
 * Returns what handOver adds
 * Invariants: the record comes first, and is in the same EXEC as the commands, as is the hand-over. A resource that
 * someone else holds is left alone.
 */
export const FINISH = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local fence = KEYS[3]
  local log = (call('HGET', fence, 'commits') or '') .. ARGV[3] .. '=' .. ARGV[2] .. ' '
  while #log > ${COMMIT_LOG_BYTES} do
    local trimmed, rest = string.match(log, '^(%d+)=%S+ (.*)$')
    call('HSET', fence, 'trimmed', trimmed)
    log = rest
  end
  call('HSET', fence, 'commits', log)
  if call('PTTL', fence) == -1 then call('PEXPIRE', fence, 2 * ttlOf(ARGV[1]) + 60000) end
  local reply = {}
  if ARGV[4] ~= '1' then
    for i = 1, #KEYS, 3 do giveUp(i, ARGV[1], reply) end
  end
  return reply
`,
);
