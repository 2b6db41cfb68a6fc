import { createHash } from 'node:crypto';

/** ms a lock that was handed to a waiter stays the waiter's until it is confirmed; never more than its TTL. */
export const PROVISIONAL_TTL = 1_500;

/** Commits a resource remembers at least, so that a lost reply can be settled. */
const COMMIT_LOG_BYTES = 4_096; // 64 records of the longest possible token

export interface Script {
  readonly text: string;
  readonly sha: string;
}

/** Comments and indentation stay here: the commit sends its scripts as text each time, within one segment. */
function script(...parts: readonly string[]): Script {
  const text = parts
    .join('\n')
    .split('\n')
    .map((line) => line.replace(/(^|\s)--.*$/, '').trim())
    .filter((line) => line !== '')
    .join('\n');
  return { text, sha: createHash('sha1').update(text).digest('hex') };
}

/*
 * Common to all scripts. KEYS come in threes, one resource after the other: owner, queue, fence (see lock-keys).
 * A token is `<client id>:<sequence>:<ttl>`, so that a script can tell whose it is and how long it may last.
 *
 * The fence hash holds:
 *   last         fencing token of the latest grant
 *   since        fencing token of the first grant this hash knows of: before it, everything was forgotten
 *   provisional  token that was handed the lock and has not been heard of yet
 *   commits      log of the latest commits, `<fencing token>=<token>#<n> ` each
 *   trimmed      fencing token of the newest commit that fell off the log
 *   guard        the commit that was last let through or refused
 */

const TOKEN = `
  local call = redis.call
  local function clientOf(token) return string.match(token, '^[^:]+') end
  local function ttlOf(token) return tonumber(string.match(token, '%d+$')) end
`;

/*
 * grant: makes the token owner for px ms and answers its fencing token: above the last one, and not below the
 * server's clock in microseconds, so that it also grows across a lost hash. The owner is set last: whatever fails
 * before it leaves no lock behind.
 */
const GRANT = `
  local function grant(owner, fence, token, px)
    local last = call('HGET', fence, 'last')
    local time = call('TIME')
    local number = string.format('%.0f', math.max((tonumber(last) or 0) + 1, time[1] * 1000000 + time[2]))
    call('HSET', fence, 'last', number)
    if not last then call('HSET', fence, 'since', number) end
    call('PEXPIRE', fence, 2 * ttlOf(token) + 60000)
    call('SET', owner, token, 'PX', px)
    return number
  end
`;

/*
 * handOver: gives a lock whose owner is done with it to the first live waiter, provisionally, or deletes it.
 * A waiter of the same client is answered, for the caller to tell it; any other is told on its client's channel.
 * Nobody receives that: the client is gone, and all its places with it. A PUBLISH that is refused counts as
 * received: the provisional TTL is the net. Bookkeeping comes first, so that the woken waiter finds it done.
 */
const HAND_OVER = `
  local function drop(queue, client)
    for _, token in ipairs(call('ZRANGE', queue, 0, -1)) do
      if clientOf(token) == client then call('ZREM', queue, token) end
    end
  end
  local function handOver(owner, queue, fence, client)
    local waiter = call('ZRANGE', queue, 0, 0)[1]
    while waiter do
      local theirs = clientOf(waiter)
      call('ZREM', queue, waiter)
      local number = grant(owner, fence, waiter, math.min(ttlOf(waiter), ${PROVISIONAL_TTL}))
      call('HSET', fence, 'provisional', waiter)
      if theirs == client then return waiter, number end
      if redis.pcall('PUBLISH', string.match(owner, '^[^{]*') .. 'wake:' .. theirs, waiter) ~= 0 then return end
      drop(queue, theirs)
      waiter = call('ZRANGE', queue, 0, 0)[1]
    end
    call('DEL', owner)
    call('HDEL', fence, 'provisional')
  end
`;

/**
 * Asks for all resources or none; the only truth about who holds a lock. Idempotent by token: asking again as the
 * owner renews the lease and answers the same fencing token.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token
 * Returns {1, fencing token, ...} in the order of KEYS, or {0, ms the holder has left (-1: forever)}
 * Invariants: nothing is granted unless everything is. A lock that is free while others wait goes to the first
 * live one of them. A provisional owner that never came for it loses all the places of its client.
 */
export const ACQUIRE = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local me = ARGV[1]
  for i = 1, #KEYS, 3 do
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    if not call('GET', owner) then
      local first = call('ZRANGE', queue, 0, 0)[1]
      if first then
        local silent = call('HGET', fence, 'provisional')
        if silent then drop(queue, clientOf(silent)) end
        handOver(owner, queue, fence)
      end
    end
    local holder = call('GET', owner)
    if holder and holder ~= me then return {0, call('PTTL', owner)} end
  end
  local reply = {1}
  for i = 1, #KEYS, 3 do
    local owner, fence = KEYS[i], KEYS[i + 2]
    local number = call('GET', owner) and call('HGET', fence, 'last')
    if number then
      call('PEXPIRE', owner, ttlOf(me))
    else
      number = grant(owner, fence, me, ttlOf(me))
    end
    call('HDEL', fence, 'provisional')
    reply[#reply + 1] = number
  end
  return reply
`,
);

/**
 * Gives the resources up, each to its next waiter.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token
 * Returns {how many of them were ours, then per waiter of this client that got one: token, fencing token}
 * Invariant: a resource that someone else holds is left alone.
 */
export const RELEASE = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local reply = {0}
  for i = 1, #KEYS, 3 do
    if call('GET', KEYS[i]) == ARGV[1] then
      reply[1] = reply[1] + 1
      local waiter, number = handOver(KEYS[i], KEYS[i + 1], KEYS[i + 2], clientOf(ARGV[1]))
      if waiter then
        reply[#reply + 1] = waiter
        reply[#reply + 1] = number
      end
    end
  end
  return reply
`,
);

/**
 * Renews leases, each by its owner only; a lost one is never re-created.
 *
 * KEYS    owner, fence of each resource
 * ARGV    token, ttl (ms) of each resource
 * Returns per resource 1 (renewed), 0 (not the owner any more), or -1 (its key could not be handled)
 * Invariant: one bad key does not spoil the others.
 */
export const RENEW = script(`
  local reply = {}
  for i = 1, #KEYS, 2 do
    local owner, fence, token, ttl = KEYS[i], KEYS[i + 1], ARGV[i], ARGV[i + 1]
    local holder = redis.pcall('GET', owner)
    local renewed = 0
    if holder == token then
      renewed = redis.pcall('PEXPIRE', owner, ttl)
      redis.pcall('HDEL', fence, 'provisional')
      redis.pcall('PEXPIRE', fence, 2 * ttl + 60000)
    end
    if type(holder) == 'table' or type(renewed) == 'table' then renewed = -1 end
    reply[#reply + 1] = renewed
  end
  return reply
`);

/**
 * Takes everything back that a token may have: its places and its locks. Run for every grant nobody wants and for
 * every reply that is uncertain. With a commit id it also settles that commit, for good: after it the token owns
 * nothing, so that a commit which still arrives is refused by its guard.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token, 2 commit id or '', 3 fencing token of the first resource
 * Returns {'committed' | 'gone' | 'unknown', then the local waiters as in release}: 'gone', it was not committed
 * and never will be; 'unknown', the log does not reach back that far.
 */
export const BURN = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local verdict = 'gone'
  if ARGV[2] ~= '' then
    local log, since, trimmed = unpack(call('HMGET', KEYS[3], 'commits', 'since', 'trimmed'))
    if log and string.find(log, '=' .. ARGV[2] .. ' ', 1, true) then
      verdict = 'committed'
    elseif call('GET', KEYS[1]) ~= ARGV[1] then
      local mine = tonumber(ARGV[3])
      if not since or tonumber(since) > mine or tonumber(trimmed or 0) >= mine then verdict = 'unknown' end
    end
  end
  local reply = {verdict}
  for i = 1, #KEYS, 3 do
    call('ZREM', KEYS[i + 1], ARGV[1])
    if call('GET', KEYS[i]) == ARGV[1] then
      local waiter, number = handOver(KEYS[i], KEYS[i + 1], KEYS[i + 2], clientOf(ARGV[1]))
      if waiter then
        reply[#reply + 1] = waiter
        reply[#reply + 1] = number
      end
    end
  end
  return reply
`,
);

/**
 * Lets a commit pass only if the token owns every resource and this very commit was not applied before. Sent as
 * text, before MULTI, with its keys under WATCH. See docs/guarded-commit.md for why that is sound.
 *
 * KEYS    owner of each resource, then the fence of the first
 * ARGV    1 token, 2 commit id
 * Returns 1 (pass) or 0 (refused)
 * Invariant: unless it answers 1, it has touched the fence, and EXEC is refused because that is watched. It
 * touches with HSET, which the transaction queues as well: whatever refuses it here refuses it there.
 */
export const GUARD = script(`
  local fence, pass = KEYS[#KEYS], true
  for i = 1, #KEYS - 1 do pass = pass and redis.pcall('GET', KEYS[i]) == ARGV[1] end
  local log = pass and redis.pcall('HGET', fence, 'commits')
  if pass and (not log or type(log) == 'string' and not string.find(log, '=' .. ARGV[2] .. ' ', 1, true)) then return 1 end
  redis.pcall('HSET', fence, 'guard', ARGV[2])
  redis.pcall('PEXPIRE', fence, 60000)
  return 0
`);

/**
 * Inside the transaction: records the commit and gives the lock up.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token, 2 commit id, 3 '1' to keep the lock
 * Returns the local waiters as in release, without the count
 * Invariant: the record and the hand-over are in the same EXEC as the commands.
 */
export const FINISH = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local log = (call('HGET', KEYS[3], 'commits') or '') .. call('HGET', KEYS[3], 'last') .. '=' .. ARGV[2] .. ' '
  while #log > ${COMMIT_LOG_BYTES} do
    local trimmed, rest = string.match(log, '^(%d+)=%S+ (.*)$')
    call('HSET', KEYS[3], 'trimmed', trimmed)
    log = rest
  end
  call('HSET', KEYS[3], 'commits', log)
  local reply = {}
  if ARGV[3] == '1' then return reply end
  for i = 1, #KEYS, 3 do
    local waiter, number = handOver(KEYS[i], KEYS[i + 1], KEYS[i + 2], clientOf(ARGV[1]))
    if waiter then
      reply[#reply + 1] = waiter
      reply[#reply + 1] = number
    end
  end
  return reply
`,
);
