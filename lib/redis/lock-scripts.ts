import { createHash } from 'node:crypto';

/** ms a lock that was handed to a waiter stays the waiter's until it is confirmed; never more than its TTL. */
export const PROVISIONAL_TTL = 1_500;

/** Commits a resource remembers at least, so that a lost reply can be settled. */
const COMMIT_LOG_BYTES = 5_120; // 64 records of the longest possible token, 80 bytes each

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
 *   believed     server time in ms until which waiters may believe some holder's lease to last
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
 * before it leaves no lock behind. Also answers whether waiters may believe that the lock is held for longer than it
 * now will be.
 */
const GRANT = `
  local function grant(owner, fence, token, px)
    local last, believed = unpack(call('HMGET', fence, 'last', 'believed'))
    local time = call('TIME')
    local number = string.format('%.0f', math.max((tonumber(last) or 0) + 1, time[1] * 1000000 + time[2]))
    local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ttlOf(token)
    local shorter = ends < (tonumber(believed) or 0)
    if not last then call('HSET', fence, 'since', number) end
    call('HSET', fence, 'last', number, 'believed', string.format('%.0f', shorter and believed or ends))
    call('PEXPIRE', fence, 2 * ttlOf(token) + 60000)
    call('SET', owner, token, 'PX', px)
    return number, shorter
  end
`;

/*
 * handOver: gives a lock whose owner is done with it to the first live waiter, or deletes it.
 * A waiter of the same client gets it for its whole TTL and is answered, for the caller to tell it; should the reply
 * be lost, that client asks for all its waiters. Any other gets it provisionally and is told on its client's channel.
 * Nobody receives that: the client is gone, and all its places with it. A PUBLISH that is refused counts as
 * received: the provisional TTL is the net. Bookkeeping comes first, so that the woken waiter finds it done.
 * When the lease is shorter than what waiters believe in, the next one in line is told to ask about it.
 *
 * Adds to the reply what the caller has to do: token and fencing token of a waiter of its own to tell, or '' and the
 * index of a resource that went elsewhere provisionally while others wait, to look after.
 *
 * takeUp: the same for a lock that is free although somebody waits: its owner is dead. A provisional owner that
 * never came for it loses all the places of its client, unless that is the client that asks now.
 */
const HAND_OVER = `
  local function first(queue) return call('ZRANGE', queue, 0, 0)[1] end
  local function drop(queue, client)
    for _, token in ipairs(call('ZRANGE', queue, 0, -1)) do
      if clientOf(token) == client then call('ZREM', queue, token) end
    end
  end
  local function tell(owner, queue, waiter)
    local client = clientOf(waiter)
    if redis.pcall('PUBLISH', string.match(owner, '^[^{]*') .. 'wake:' .. client, waiter) ~= 0 then return true end
    drop(queue, client)
  end
  local function handOver(i, client, reply)
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    local waiter = first(queue)
    while waiter do
      call('ZREM', queue, waiter)
      local ours = clientOf(waiter) == client
      local px = ours and ttlOf(waiter) or math.min(ttlOf(waiter), ${PROVISIONAL_TTL})
      local number, shorter = grant(owner, fence, waiter, px)
      if ours then call('HDEL', fence, 'provisional') else call('HSET', fence, 'provisional', waiter) end
      if ours or tell(owner, queue, waiter) then
        local after = shorter and first(queue)
        while after and not tell(owner, queue, after) do after = first(queue) end
        if ours then
          reply[#reply + 1] = waiter
          reply[#reply + 1] = number
        elseif first(queue) then
          reply[#reply + 1] = ''
          reply[#reply + 1] = (i - 1) / 3
        end
        return
      end
      waiter = first(queue)
    end
    call('DEL', owner)
    call('HDEL', fence, 'provisional')
  end
  local function takeUp(i, client, asker, reply)
    if call('EXISTS', KEYS[i]) == 1 then return end
    local silent = call('HGET', KEYS[i + 2], 'provisional')
    if silent then
      if clientOf(silent) ~= (asker and clientOf(asker) or client) then drop(KEYS[i + 1], clientOf(silent)) end
      call('HDEL', KEYS[i + 2], 'provisional')
    end
    local waiter = first(KEYS[i + 1])
    if waiter and waiter ~= asker then handOver(i, client, reply) end
  end
  local function giveUp(i, token, reply)
    local holder, client = call('GET', KEYS[i]), clientOf(token)
    if holder == token then handOver(i, client, reply) else takeUp(i, client, nil, reply) end
    return holder == token
  end
`;

/**
 * Asks for all resources or none; the only truth about who holds a lock. Idempotent by token: asking again as the
 * owner renews the lease and answers the same fencing token.
 *
 * KEYS    owner, queue, fence of each resource; one resource only when there is a ticket
 * ARGV    1 token
 *         2 ticket: '' does not wait, '0' wants a place in the queue, any other keeps its place
 *         3 ms the place may be needed, 4 places there may be ('' any number)
 * Returns {1, lost, fencing token, ...} in the order of KEYS
 *         {0, ms the holder has left (-1: for ever), and if there is one: ticket, lost}
 *         {2, ms the holder has left} when all places are taken
 *         lost: 1 when the place that was to be kept was not there any more
 * Invariants: nothing is granted unless everything is. A lock that is free while others wait goes to the first
 * live one of them. A provisional owner that never came for it loses all the places of its client.
 */
export const ACQUIRE = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local me, ticket = ARGV[1], ARGV[2]
  local lost = 0
  if ticket ~= '' and ticket ~= '0' and call('GET', KEYS[1]) ~= me then
    lost = call('ZADD', KEYS[2], 'NX', ticket, me)
  end
  for i = 1, #KEYS, 3 do
    local owner, queue = KEYS[i], KEYS[i + 1]
    takeUp(i, '', me, {}) -- even a waiter of this client is told by a message here
    local holder = call('GET', owner)
    if holder and holder ~= me then
      local left = call('PTTL', owner)
      if ticket == '' then return {0, left} end
      local place = call('ZSCORE', queue, me)
      if place then ticket = place end
      if ticket == '0' then
        local places = call('ZCARD', queue)
        if ARGV[4] ~= '' and places >= tonumber(ARGV[4]) then return {2, left} end
        local time, last = call('TIME'), call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
        ticket = string.format('%.0f', math.max((tonumber(last) or 0) + 1, time[1] * 1000000 + time[2]))
        call('ZADD', queue, ticket, me)
      end
      if call('PTTL', queue) < tonumber(ARGV[3]) then call('PEXPIRE', queue, ARGV[3]) end
      return {0, left, ticket, lost}
    end
  end
  local reply = {1, lost}
  for i = 1, #KEYS, 3 do
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    local number = call('GET', owner) and call('HGET', fence, 'last')
    if number then
      call('PEXPIRE', owner, ttlOf(me))
    else
      number = grant(owner, fence, me, ttlOf(me))
    end
    call('ZREM', queue, me)
    call('HDEL', fence, 'provisional')
    reply[#reply + 1] = number
  end
  return reply
`,
);

/**
 * Gives the resources up, each to its next waiter. One that is free by now, but waited for, is handed over as well.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token
 * Returns {how many of them were ours, then what handOver adds}
 * Invariant: a resource that someone else holds is left alone.
 */
export const RELEASE = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local reply = {0}
  for i = 1, #KEYS, 3 do
    if giveUp(i, ARGV[1], reply) then reply[1] = reply[1] + 1 end
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
  local reply, time = {}, redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for i = 1, #KEYS, 2 do
    local owner, fence, token, ttl = KEYS[i], KEYS[i + 1], ARGV[i], ARGV[i + 1]
    local holder = redis.pcall('GET', owner)
    local renewed = 0
    if holder == token then
      renewed = redis.pcall('PEXPIRE', owner, ttl)
      if (tonumber(redis.pcall('HGET', fence, 'believed')) or 0) < now + ttl then
        redis.pcall('HSET', fence, 'believed', string.format('%.0f', now + ttl))
      end
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
 * Returns {'committed' | 'gone' | 'unknown', then what handOver adds}: 'gone', it was not committed and never will
 * be; 'unknown', the log does not reach back that far.
 */
export const BURN = script(
  TOKEN,
  GRANT,
  HAND_OVER,
  `
  local verdict = 'gone'
  if ARGV[2] ~= '' then
    local log, since, trimmed = unpack(call('HMGET', KEYS[3], 'commits', 'since', 'trimmed'))
    local mine = tonumber(ARGV[3])
    if log and string.find(log, '=' .. ARGV[2] .. ' ', 1, true) then
      verdict = 'committed'
    elseif not since or tonumber(since) > mine or tonumber(trimmed or 0) >= mine then
      verdict = 'unknown'
    end
  end
  local reply = {verdict}
  for i = 1, #KEYS, 3 do
    call('ZREM', KEYS[i + 1], ARGV[1])
    giveUp(i, ARGV[1], reply)
  end
  return reply
`,
);

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
