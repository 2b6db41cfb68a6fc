import {
  FENCE,
  GRANT,
  HAND_OVER,
  MORE_TO_CLEAR,
  RECORD,
  TOKEN,
  claimScript,
  script,
} from './script-parts.js';

/**
 * Asks for all resources of a claim or none, for several claims at once; the only truth about who holds a lock.
 * Idempotent by token: asking again as the owner answers the same fencing token, and makes the lease last for its ttl again
 * unless it lasts longer, or was extended.
 *
 * KEYS    owner, queue, fence of each resource, claim by claim
 * ARGV    of each claim:
 *         1 token
 *         2 '' does not wait; otherwise, for one resource only: `ticket`, '0' wants a place in the queue, any other keeps
 *         its place; ` ms the place may be needed`; ` places there may be` or any number
 * Returns for each claim one of
 *         fencing token, when nobody had or wanted its one resource
 *         {1, lost, fencing token, ..., run} in the order of KEYS; run: see handOver, if it had a ticket
 *         {0, ms the holder has left (-1: for ever), and if there is one: ticket, lost, last fencing token, before}; the ms
 *         are those until another try where places of clients that are gone are left to clear away
 *         {2, ms the holder has left} when all places are taken
 *         an error that concerns this claim alone
 *         before: who comes right before a new place, if that is of its own client: the name of the last one in
 *         line, or 'ours' where that is the holder
 *         lost: 1 when the place that was to be kept was not there any more
 * Invariants: nothing of a claim is granted unless all of it is. A lock that is free while others wait goes to the
 * first live one of them. A client that never came for a lock it was handed is silent: its places are skipped until it asks.
 * No lease becomes shorter.
 */
export const ACQUIRE = claimScript(
  RECORD,
  FENCE,
  GRANT,
  `
  -- Most locks are free and nobody waits for them: one look at all of a batch, and no more than it takes to grant them.
  local replies, asked = {}, {}
  if #KEYS == #ARGV / 2 * 3 then
    local names = {}
    for i = 1, #KEYS, 3 do names[#names + 1], names[#names + 2] = KEYS[i], KEYS[i + 1] end
    local quiet = call('EXISTS', unpack(names)) == 0
    local left = forEachClaim(2, replies, function(from, _, me, wish)
      local owner, queue, fence = KEYS[from], KEYS[from + 1], KEYS[from + 2]
      local isFirst = not asked[owner] -- whoever was asked for before comes first
      asked[owner] = true
      if not isFirst or wish ~= '' and not string.find(wish, '^0 ') then return nil end
      if not quiet and call('EXISTS', owner, queue) > 0 then return nil end
      local is = known(fence)
      if is[PROVISIONAL] then return nil end -- there is somebody to clear away
      local number = grant(owner, fence, me, ttlOf(me), is)
      return tonumber(number)
    end)
    if left == 0 then return replies end
  end
  `,
  HAND_OVER,
  `
  forEachClaim(2, replies, function(from, to, me, wish)
    local lost, ticket, neededFor, maxPlaces = 0, string.match(wish, '^(%d+) (%d+) ?(%d*)$')
    if ticket and ticket ~= '0' and call('GET', KEYS[from]) ~= me and not call('ZSCORE', KEYS[from + 1], me) then
      lost = call('ZADD', KEYS[from + 1], ticket, me)
    end
    local free = {}
    for i = from, to, 3 do
      local owner, queue, more = KEYS[i], KEYS[i + 1], false
      local holder = call('GET', owner)
      if not holder then
        free[i], more = takeUp(i, '', me, {}) -- even a waiter of this client is told by a message here
        holder = not free[i] and call('GET', owner)
        if not holder then free[i] = free[i] or known(KEYS[i + 2]) end
      end
      if more or holder and holder ~= me then
        local left = more and ${MORE_TO_CLEAR} or call('PTTL', owner)
        if not ticket then return {0, left} end
        local before
        if ticket == '0' then
          local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
          local isOurs = last[1] and clientOf(last[1]) == clientOf(me) -- what others wait with is nobody else's business
          before = isOurs and nameOf(last[1]) or not last[1] and holder and clientOf(holder) == clientOf(me) and 'ours' or nil
          ticket = format(math.max((tonumber(last[2]) or 0) + 1, micros()))
          if call('ZADD', queue, 'NX', ticket, me) == 0 then
            ticket, before = format(call('ZSCORE', queue, me)), nil -- the same ask, sent again
          elseif maxPlaces ~= '' and call('ZCARD', queue) > tonumber(maxPlaces) then
            call('ZREM', queue, me)
            return {2, left}
          end
        else
          ticket = format(call('ZSCORE', queue, me) or ticket)
        end
        -- A write with each ask: a server that has become a replica refuses it, and its client moves on.
        call('PEXPIRE', queue, math.max(call('PTTL', queue), tonumber(neededFor)))
        local is = known(KEYS[i + 2])
        revive(KEYS[i + 2], is, clientOf(me))
        return {0, left, ticket, lost, is[LAST], before}
      end
    end
    local reply = {1, lost}
    if ticket then call('ZREM', KEYS[from + 1], me) end -- first: when memory is full, Redis lets a script that has written go on
    for i = from, to, 3 do
      local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
      local is = free[i] or known(fence)
      local number = not free[i] and is[LAST]
      if number then
        if termsOf(is, me) == 0 then lengthen(owner, ttlOf(me)) end
        if is[PROVISIONAL] then call('HDEL', fence, 'provisional') end
      else
        local shorter
        number, shorter = grant(owner, fence, me, math.max(ttlOf(me), free[i] and 0 or call('PTTL', owner)), is)
        if shorter then nudge(i, outOf(is)) end
      end
      revive(fence, is, clientOf(me))
      reply[#reply + 1] = number
    end
    if ticket and ticket ~= '0' then reply[#reply + 1] = run(KEYS[from + 1], clientOf(me)) end
    return reply
  end)
  return replies
`,
);

/**
 * Gives the resources of claims up, each to its next waiter. One that is free by now, but waited for, is handed over
 * as well.
 *
 * KEYS    owner, queue, fence of each resource, claim by claim
 * ARGV    of each claim: 1 tokens, see giveUp, 2 the latest one's fencing token if there are several
 * Returns for each claim one of
 *         1, when it had its one resource and nobody waits
 *         {how many of its resources were its own, then what handOver adds}
 *         an error
 * Invariant: a resource that someone else holds is left alone.
 */
export const RELEASE = claimScript(
  `
  -- As above: most are its own and nobody waits.
  local replies = {}
  if #KEYS == #ARGV / 2 * 3 then
    local owners, queues, done = {}, {}, {}
    for i = 1, #KEYS, 3 do owners[#owners + 1], queues[#queues + 1] = KEYS[i], KEYS[i + 1] end
    local holders = call('MGET', unpack(owners))
    if call('EXISTS', unpack(queues)) == 0 then
      for n, owner in ipairs(owners) do
        if holders[n] == ARGV[2 * n - 1] then replies[n], done[#done + 1] = 1, owner end
      end
      if #done > 0 then call('DEL', unpack(done)) end
      if #done == #owners then return replies end
    end
  end
  `,
  RECORD,
  FENCE,
  GRANT,
  HAND_OVER,
  `
  forEachClaim(2, replies, function(from, to, tokens, number)
    local reply = {0}
    for i = from, to, 3 do
      if giveUp(i, tokens, number, reply) then reply[1] = reply[1] + 1 end
    end
    return reply
  end)
  return replies
`,
);

/**
 * Makes the waiter owner whom the client has already let begin, under the lease of the holder before: passes the lock on
 * from whichever of its tokens Redis knows as the owner. Can be sent again. A waiter that has the lock in another way, for
 * it was taken from the holder before, has it provisionally and not for long: that does not count.
 *
 * KEYS    owner, queue, fence of the resource
 * ARGV    1 token, 2 its fencing token, one more than that of the holder before, 3 ... tokens of the holders before
 * Returns {1, run} or {0} when none of them is the owner any more; run: see handOver
 * Invariant: what someone else holds, or nobody, is left alone.
 */
export const PASS_ON = script(
  TOKEN,
  RECORD,
  FENCE,
  GRANT,
  HAND_OVER,
  `
  local owner, queue, fence, me = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
  local holder, mine = call('GET', owner), false
  for a = 3, #ARGV do mine = mine or holder == ARGV[a] end
  local is = known(fence)
  if not mine and (holder ~= me or is[PROVISIONAL] == me) then return {0} end
  call('ZREM', queue, me, unpack(ARGV, 3)) -- first: when memory is full, Redis lets a script that has written go on
  if mine then
    if is[PROVISIONAL] then call('HDEL', fence, 'provisional') end
    local _, shorter = grant(owner, fence, me, ttlOf(me), is, tonumber(ARGV[2]))
    if shorter then nudge(1, outOf(is)) end
  end
  return {1, run(queue, clientOf(me))}
`,
);

/**
 * Renews leases, each by its owner only; a lost one is never re-created. A lock that was handed over provisionally is its
 * owner's for good with this.
 *
 * KEYS    owner, fence of each resource
 * ARGV    token, ttl (ms), terms of each resource; terms: how often the lease was extended before this was sent
 * Returns per resource 1 (renewed), 0 (not the owner any more), or Redis' error (its key could not be handled)
 * Invariants: one bad key does not spoil the others. No lease becomes shorter; one that was extended since stays as it is.
 */
export const RENEW = script(
  TOKEN,
  RECORD,
  FENCE,
  `
  local reply = {}
  for i = 1, #KEYS, 2 do
    local owner, fence, a = KEYS[i], KEYS[i + 1], (i - 1) / 2 * 3 + 1
    local token, ttl, terms = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
    local holder = redis.pcall('GET', owner)
    local renewed = type(holder) == 'table' and holder or 0
    if holder == token then
      local could, is = pcall(known, fence)
      if not could or terms >= termsOf(is, token) then
        local could, why = pcall(lengthen, owner, ttl)
        renewed = could and 1 or type(why) == 'table' and why or {err = (string.gsub(tostring(why), '^@user_script: %d+: %-?', ''))}
        pcall(function()
          if is[PROVISIONAL] then call('HDEL', fence, 'provisional') end
          record(fence, ttl, is[KEPT], 'believed', format(math.max(tonumber(is[BELIEVED]) or 0, millis() + ttl)))
        end)
      else
        renewed = 1
      end
    end
    reply[#reply + 1] = renewed
  end
  return reply
`,
);

/**
 * Makes leases last from now on, also shorter than they were to; then the next in line, who believes in the old end, has to
 * ask.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token, 2 ttl (ms), 3 terms: the number of this extension of the lease, from 1
 * Returns {how many of them were ours, 1 where places of clients that are gone still stand before the next in line}
 * Invariants: what is not ours is left alone, and never created. An extension that arrives after a later one does nothing;
 * one that arrives a second time makes no lease shorter.
 */
export const EXTEND = script(
  TOKEN,
  RECORD,
  FENCE,
  GRANT,
  HAND_OVER,
  `
  local ours, more, token, ttl, terms = 0, false, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
  local ends = millis() + ttl
  for i = 1, #KEYS, 3 do
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    if call('GET', owner) == token then
      ours = ours + 1
      local is = known(fence)
      local last = termsOf(is, token)
      if is[PROVISIONAL] then call('HDEL', fence, 'provisional') end
      if terms == last then lengthen(owner, ttl) end
      if terms > last then
        local believed = tonumber(is[BELIEVED]) or 0
        call('PEXPIRE', owner, ttl)
        record(fence, ttl, is[KEPT], 'believed', format(math.max(ends, believed)), 'terms', terms .. ' ' .. token)
      end
      if ends < (tonumber(is[BELIEVED]) or 0) then more = nudge(i, outOf(is)) or more end
    end
  end
  return {ours, more and 1 or 0}
`,
);

/**
 * Takes everything back that a token may have: its places and its locks. Run for every grant nobody wants and for
 * every reply that is uncertain. With the record of a commit it also settles that commit, for good: after it the token owns
 * nothing, so that a commit which still arrives is refused by its guard.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 tokens, see giveUp, 2 record of a commit or '', 3 its field, 4 fencing token of the first resource, if known
 * Returns {'committed' | 'gone' | 'unknown', placeLost, then what handOver adds}: 'gone', it was not committed and never will
 * be; 'unknown', its record is lost, if there was one.
 */
export const BURN = script(
  TOKEN,
  RECORD,
  FENCE,
  GRANT,
  HAND_OVER,
  `
  local verdict = 'gone'
  if ARGV[2] ~= '' then
    local record, since = unpack(call('HMGET', KEYS[3], ARGV[3], 'since'))
    local mine = tonumber(ARGV[4])
    if record == ARGV[2] then
      verdict = 'committed'
    elseif not since or tonumber(since) > mine then
      verdict = 'unknown'
    end
  end
  local reply = {verdict, 1}
  for i = 1, #KEYS, 3 do
    local had = call('ZREM', KEYS[i + 1], latestOf(ARGV[1]))
    -- neither the owner nor in line, of none of them: if a waiter had this token, it had lost its place
    if giveUp(i, ARGV[1], ARGV[4], reply) or had == 1 then reply[2] = 0 end
  end
  return reply
`,
);

/**
 * Takes a lock away from whoever has it, for an operator; the next in line gets it. One that is free by now, but waited
 * for, is handed over as well. Everybody is told by a message, also those of the client that has lost it.
 *
 * What another program has put into its keys, and what would keep it from working, goes: keys of another type, and a fence
 * whose numbers are none. What stands in the queue without being a token goes with the places that are skipped.
 *
 * KEYS    owner, queue, fence
 * ARGV    1 token that nobody has, 2 the token to take the lock from: the request may be read late, or twice
 * Returns {1 if that one had it, 2 if it has another owner by now, then what handOver adds}
 */
export const FORCE_RELEASE = script(
  TOKEN,
  RECORD,
  FENCE,
  GRANT,
  HAND_OVER,
  `
  local owner, queue, fence = KEYS[1], KEYS[2], KEYS[3]
  local reply = {call('EXISTS', owner)}
  local function isMisused(...)
    local read = redis.pcall(...)
    return type(read) == 'table' and read.err and string.find(read.err, 'WRONGTYPE')
  end
  if isMisused('GET', owner) then call('DEL', owner)
  elseif reply[1] == 1 and call('GET', owner) ~= ARGV[2] then return {2} end
  if isMisused('ZCARD', queue) then call('DEL', queue) end
  if isMisused('HGET', fence, 'last') then call('DEL', fence) end
  for _, number in ipairs(call('HMGET', fence, 'last', 'since', 'believed', 'kept')) do
    if number and not (string.find(number, '^%d+$') and tonumber(number) < 2 ^ 53) then call('DEL', fence) end
  end
  if reply[1] == 1 then handOver(1, '', reply) else takeUp(1, '', nil, reply) end
  return reply
`,
);

/**
 * What an operator wants to know, for several resources at once. What another program has put there, of another type, is
 * not known.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    '' for each resource
 * Returns for each resource {token of its owner, '' where that is no string, or false, ms its lease has left, its last
 * fencing token or false, waiters}
 */
export const INSPECT = claimScript(`
  local replies = {}
  local function read(unknown, ...)
    local value = redis.pcall(...)
    if type(value) ~= 'table' or not value.err then return value end
    if not string.find(value.err, '^WRONGTYPE') then error(value) end
    return unknown
  end
  forEachClaim(1, replies, function(i)
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    return {read('', 'GET', owner), call('PTTL', owner), read(false, 'HGET', fence, 'last'), read(0, 'ZCARD', queue)}
  end)
  return replies
`);
