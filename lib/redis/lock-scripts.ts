import { GRANT, HAND_OVER, RECORD, TOKEN, claimScript, script } from './script-parts.js';

/**
 * Asks for all resources of a claim or none, for several claims at once; the only truth about who holds a lock.
 * Idempotent by token: asking again as the owner renews the lease and answers the same fencing token.
 *
 * KEYS    owner, queue, fence of each resource, claim by claim
 * ARGV    of each claim:
 *         1 token
 *         2 '' does not wait; otherwise, for one resource only: `ticket`, '0' wants a place in the queue, any other keeps
 *         its place; ` ms the place may be needed`; ` places there may be` or any number
 * Returns for each claim one of
 *         fencing token, when nobody had or wanted its one resource
 *         {1, lost, fencing token, ..., run} in the order of KEYS; run: see handOver, if it had a ticket
 *         {0, ms the holder has left (-1: for ever), and if there is one: ticket, lost, last fencing token, before}
 *         {2, ms the holder has left} when all places are taken
 *         an error that concerns this claim alone
 *         before: who comes right before a new place, as far as the asker can know it: the token of the last one in
 *         line, or 'ours' where that is a holder of its own client
 *         lost: 1 when the place that was to be kept was not there any more
 * Invariants: nothing of a claim is granted unless all of it is. A lock that is free while others wait goes to the
 * first live one of them. A provisional owner that never came for it loses all the places of its client.
 */
export const ACQUIRE = claimScript(
  RECORD,
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
      if is[3] then return nil end -- there is somebody to clear away
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
    if ticket and ticket ~= '0' and call('GET', KEYS[from]) ~= me then
      lost = call('ZADD', KEYS[from + 1], 'NX', ticket, me)
    end
    local free = {}
    for i = from, to, 3 do
      local owner, queue = KEYS[i], KEYS[i + 1]
      local holder = call('GET', owner)
      if not holder then
        free[i] = takeUp(i, '', me, {}) -- even a waiter of this client is told by a message here
        holder = not free[i] and call('GET', owner)
        if not holder then free[i] = free[i] or known(KEYS[i + 2]) end
      end
      if holder and holder ~= me then
        local left = call('PTTL', owner)
        if not ticket then return {0, left} end
        local before
        if ticket == '0' then
          local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
          before = last[1] or clientOf(holder) == clientOf(me) and 'ours' or nil
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
        if call('PTTL', queue) < tonumber(neededFor) then call('PEXPIRE', queue, neededFor) end
        return {0, left, ticket, lost, call('HGET', KEYS[i + 2], 'last'), before}
      end
    end
    local reply = {1, lost}
    for i = from, to, 3 do
      local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
      local number = not free[i] and call('HGET', fence, 'last')
      if number then
        call('PEXPIRE', owner, ttlOf(me))
        call('HDEL', fence, 'provisional')
      else
        local shorter
        number, shorter = grant(owner, fence, me, ttlOf(me), free[i] or known(fence))
        local after = shorter and first(queue)
        if after and after ~= me then tell(owner, queue, after) end
      end
      if ticket then call('ZREM', queue, me) end
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
  GRANT,
  HAND_OVER,
  `
  local owner, queue, fence, me = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
  local holder, mine = call('GET', owner), false
  for a = 3, #ARGV do mine = mine or holder == ARGV[a] end
  local is = known(fence)
  if not mine and (holder ~= me or is[3] == me) then return {0} end
  local number, shorter
  if mine and is[3] then call('HDEL', fence, 'provisional') end
  if mine then number, shorter = grant(owner, fence, me, ttlOf(me), is, tonumber(ARGV[2])) end
  call('ZREM', queue, me, unpack(ARGV, 3))
  local after = shorter and first(queue)
  while after and not tell(owner, queue, after) do after = first(queue) end
  return {1, run(queue, clientOf(me))}
`,
);

/**
 * Renews leases, each by its owner only; a lost one is never re-created. Whoever was handed the lock provisionally has it
 * for good with this.
 *
 * KEYS    owner, fence of each resource
 * ARGV    token, ttl (ms) of each resource
 * Returns per resource 1 (renewed), 0 (not the owner any more), or Redis' error (its key could not be handled)
 * Invariant: one bad key does not spoil the others.
 */
export const RENEW = script(
  TOKEN,
  RECORD,
  `
  local reply = {}
  for i = 1, #KEYS, 2 do
    local owner, fence, token, ttl = KEYS[i], KEYS[i + 1], ARGV[i], tonumber(ARGV[i + 1])
    local holder = redis.pcall('GET', owner)
    local renewed = 0
    if holder == token then
      renewed = redis.pcall('PEXPIRE', owner, ttl)
      pcall(function()
        local believed, kept, provisional = unpack(call('HMGET', fence, 'believed', 'kept', 'provisional'))
        if provisional then call('HDEL', fence, 'provisional') end
        record(fence, ttl, kept, 'believed', format(math.max(tonumber(believed) or 0, millis() + ttl)))
      end)
    end
    if type(holder) == 'table' then renewed = holder end
    reply[#reply + 1] = renewed
  end
  return reply
`,
);

/**
 * Makes leases last from now on, also shorter than they were to; then the next in line, who believes in the old end, is
 * told to ask.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    1 token, 2 ttl (ms)
 * Returns how many of them were ours
 * Invariant: what is not ours is left alone, and never created.
 */
export const EXTEND = script(
  TOKEN,
  RECORD,
  GRANT,
  HAND_OVER,
  `
  local ours, ttl = 0, tonumber(ARGV[2])
  local ends = millis() + ttl
  for i = 1, #KEYS, 3 do
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    if call('GET', owner) == ARGV[1] then
      ours = ours + 1
      call('PEXPIRE', owner, ttl)
      local believed, kept = unpack(call('HMGET', fence, 'believed', 'kept'))
      believed = tonumber(believed) or 0
      record(fence, ttl, kept, 'believed', format(math.max(ends, believed)))
      local waiter = ends < believed and first(queue)
      while waiter and not tell(owner, queue, waiter) do waiter = first(queue) end
    end
  end
  return ours
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
 * be; 'unknown', its record was overwritten or is lost, if there was one.
 */
export const BURN = script(
  TOKEN,
  RECORD,
  GRANT,
  HAND_OVER,
  `
  local verdict = 'gone'
  if ARGV[2] ~= '' then
    local record, since = unpack(call('HMGET', KEYS[3], ARGV[3], 'since'))
    local mine = tonumber(ARGV[4])
    if record == ARGV[2] then
      verdict = 'committed'
    elseif not since or tonumber(since) > mine or record and tonumber(string.match(record, '^%d+')) > mine then
      verdict = 'unknown'
    end
  end
  local reply = {verdict, 0}
  for i = 1, #KEYS, 3 do
    local had = call('ZREM', KEYS[i + 1], latestOf(ARGV[1]))
    -- neither the owner nor in line: whoever waited with this token had lost its place
    if not giveUp(i, ARGV[1], ARGV[4], reply) and had == 0 then reply[2] = 1 end
  end
  return reply
`,
);

/**
 * Takes a lock away from whoever has it, for an operator; the next in line gets it. One that is free by now, but waited
 * for, is handed over as well. Everybody is told by a message, also those of the client that has lost it.
 *
 * KEYS    owner, queue, fence
 * ARGV    1 token that nobody has
 * Returns {1 if somebody had it, then what handOver adds}
 */
export const FORCE_RELEASE = script(
  TOKEN,
  RECORD,
  GRANT,
  HAND_OVER,
  `
  local reply = {0}
  if call('EXISTS', KEYS[1]) == 1 then
    reply[1] = 1
    handOver(1, '', reply)
  else
    takeUp(1, '', nil, reply)
  end
  return reply
`,
);

/**
 * What an operator wants to know, for several resources at once.
 *
 * KEYS    owner, queue, fence of each resource
 * ARGV    '' for each resource
 * Returns for each resource {token of its owner or false, ms its lease has left, its last fencing token, waiters}
 */
export const INSPECT = claimScript(`
  local replies = {}
  forEachClaim(1, replies, function(i)
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    return {call('GET', owner), call('PTTL', owner), call('HGET', fence, 'last'), call('ZCARD', queue)}
  end)
  return replies
`);
