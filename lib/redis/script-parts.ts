import { createHash } from 'node:crypto';

/** ms a lock that was handed to a waiter stays the waiter's until it is confirmed; never more than its TTL. */
export const PROVISIONAL_TTL = 1_500;

export interface Script {
  readonly text: string;
  readonly sha: string;
}

/** A script that answers for many claims at once, with a reply for each: of one resource each, or for one of several. */
export interface ClaimScript extends Script {
  readonly answersEach: true;
}

/** Comments and indentation stay here: the commit sends its guard as text each time, within one segment. */
export function script(...parts: readonly string[]): Script {
  const text = parts
    .join('\n')
    .split('\n')
    .map((line) => line.replace(/(^|\s)--.*$/, '').trim())
    .filter((line) => line !== '')
    .join('\n');
  return { text, sha: createHash('sha1').update(text).digest('hex') };
}

export function claimScript(...parts: readonly string[]): ClaimScript {
  return { ...script(TOKEN, FOR_EACH_CLAIM, ...parts), answersEach: true };
}

/*
 * Common to all scripts. KEYS come in threes, one resource after the other: owner, queue, fence (see lock-keys).
 * A token is `<client id>:<sequence>:<ttl>`, so that a script can tell whose it is and how long it may last; a sequence
 * that begins with 's' belongs to a waiter that listens to a sharded channel.
 *
 * The fence hash holds:
 *   last         fencing token of the latest grant
 *   since        fencing token of the first grant this hash knows of: before it, everything was forgotten
 *   believed     server time in ms until which waiters may believe some holder's lease to last
 *   provisional  token that was handed the lock and has not been heard of yet
 *   kept         server time in ms at which the hash itself ends
 *   c0 .. c63    the last commit of each of the last 64 grants, `<fencing token>=<token>#<n>`, see commitRecord
 *   guard        the commit that was last refused
 */

/** Grants whose commits a resource remembers, so that a lost reply can be settled. */
const REMEMBERED = 64;

/**
 * How often a client may pass a lock on before Redis has heard of it. Less than what the next grant that Redis makes
 * by itself is above the last one it knows of, and within what it remembers.
 */
export const MAX_UNHEARD = 32;

/** Waiters of one client that are named to it as the next in line. */
const LONGEST_RUN = 16;

/**
 * How the n-th commit under a grant is recorded. Each grant's fencing token is one step further around the places
 * than the one before, so that a record is overwritten by the 64th grant after it and not before.
 */
export function commitRecord(token: string, fencingToken: number, n: number) {
  return { field: `c${fencingToken % REMEMBERED}`, record: `${fencingToken}=${token}#${n}` };
}

export const TOKEN = `
  local call, base = redis.call, 1 -- base: where the KEYS of the claim at work begin
  local function clientOf(token) return string.match(token, '^[^:]+') end
  local function ttlOf(token) return tonumber(string.match(token, '%d+$')) end
  local function latestOf(tokens) return string.match(tokens, '^%S+') end
`;

/*
 * forEachClaim: calls back for each claim that has no reply yet, with the first and the last place of its KEYS and what
 * belongs to it in ARGV. An error ends the claim alone that it concerns. Answers how many have no reply still.
 */
export const FOR_EACH_CLAIM = `
  local function forEachClaim(size, replies, answer)
    local claims, left = #ARGV / size, 0
    local width = #KEYS / claims
    for n = 1, claims do
      if replies[n] == nil then
        base = (n - 1) * width + 1
        local done, reply = pcall(answer, base, base + width - 1, unpack(ARGV, (n - 1) * size + 1, n * size))
        if not done and type(reply) ~= 'table' then reply = {err = tostring(reply)} end
        if reply == nil then left = left + 1 end
        replies[n] = reply
      end
    end
    return left
  end
`;

/*
 * micros: the server's time, the same for everything in a script. format: a number as Redis wants it.
 *
 * record: sets fields of the fence, which from then on outlives a lease of that ttl by another ttl and 60 s; when that
 * has to be said to Redis, it is for a minute more, so that it need not be with each grant.
 */
export const RECORD = `
  local clock
  local function micros()
    if not clock then
      local time = call('TIME')
      clock = time[1] * 1000000 + time[2]
    end
    return clock
  end
  local function millis() return math.floor(micros() / 1000) end
  local function format(number) return string.format('%.0f', number) end
  local function record(fence, ttl, kept, ...)
    local needed = millis() + 2 * ttl + 60000
    if needed <= (tonumber(kept) or 0) then return call('HSET', fence, ...) end
    kept = format(needed + 60000)
    call('HSET', fence, 'kept', kept, ...)
    call('PEXPIREAT', fence, kept)
  end
`;

/*
 * known: what a grant has to know of the fence: last, believed, provisional, kept.
 *
 * grant: makes the token owner for px ms and answers its fencing token. That is the server's clock in microseconds, or
 * up to 63 less, so that it also grows across a lost hash; and one step further around the places for commit records,
 * and above all that a client which died can have given itself since the last one known here, see passOn. Such a client
 * says the number itself. The owner is set last: whatever fails before it leaves no lock behind. Also answers whether
 * waiters may believe that the lock is held for longer than it now will be.
 */
export const GRANT = `
  local function known(fence) return call('HMGET', fence, 'last', 'believed', 'provisional', 'kept') end
  local function grant(owner, fence, token, px, is, number)
    local last, believed, ttl = tonumber(is[1]), tonumber(is[2]) or 0, ttlOf(token)
    if not number then
      number = micros()
      if last then number = math.max(last + 1 + ${REMEMBERED}, number - (number - last - 1) % ${REMEMBERED}) end
    end
    local ends = millis() + ttl
    local shorter = ends < believed
    number, ends = format(number), format(math.max(ends, believed))
    if last then record(fence, ttl, is[4], 'last', number, 'believed', ends)
    else record(fence, ttl, is[4], 'last', number, 'believed', ends, 'since', number) end
    call('SET', owner, token, 'PX', px)
    return number, shorter
  end
`;

/*
 * handOver: gives a lock whose owner is done with it to the first live waiter, or deletes it.
 * A waiter of the same client gets it for its whole TTL and is answered, for the caller to tell it; should the reply
 * be lost, that client asks for all its waiters. Any other gets it provisionally and is told on its client's channel, with
 * its fencing token.
 * Nobody receives that: the client is gone, and all its places with it. A PUBLISH that is refused counts as
 * received: the provisional TTL is the net. Bookkeeping comes first, so that the woken waiter finds it done.
 * When the lease is shorter than what waiters believe in, the next one in line is told to ask about it.
 *
 * Adds to the reply what the caller has to do: token, fencing token and run of a waiter of its own to tell, or '', the
 * index, within its claim, of a resource that went elsewhere provisionally while others wait, to look after, and ''.
 *
 * run: those of the client's waiters that come before any other's, the first one first.
 *
 * giveUp: hands over what one of the tokens has. They are those of a client that passed the lock on from one to the
 * other, the latest first, of which Redis may not have heard yet: the number is the latest one's fencing token.
 *
 * takeUp: the same for a lock that is free although somebody waits: its owner is dead. A provisional owner that
 * never came for it loses all the places of its client, unless that is the client that asks now. Answers what is known
 * when the lock stays free, for the asker.
 */
export const HAND_OVER = `
  local function first(queue) return call('ZRANGE', queue, 0, 0)[1] end
  local function run(queue, client)
    local tokens = call('ZRANGE', queue, 0, ${LONGEST_RUN - 1})
    local length = 0
    while tokens[length + 1] and clientOf(tokens[length + 1]) == client do length = length + 1 end
    return table.concat(tokens, ' ', 1, length)
  end
  local function drop(queue, client)
    for _, token in ipairs(call('ZRANGE', queue, 0, -1)) do
      if clientOf(token) == client then call('ZREM', queue, token) end
    end
  end
  local function tell(owner, queue, waiter, number)
    local client, sharded = string.match(waiter, '^([^:]+):(s?)')
    local prefix, tag = string.match(owner, '^(.*)({[^}]*})')
    local receivers
    local message = number and table.concat({waiter, number, run(queue, client)}, ' ') or waiter
    if sharded == 's' then receivers = redis.pcall('SPUBLISH', prefix .. 'wake:' .. tag .. ':' .. client, message)
    else receivers = redis.pcall('PUBLISH', prefix .. 'wake:' .. client, message) end
    if receivers ~= 0 then return true end
    drop(queue, client)
  end
  local function handOver(i, client, reply)
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    local waiter = first(queue)
    while waiter do
      call('ZREM', queue, waiter)
      local ours = clientOf(waiter) == client
      local px = ours and ttlOf(waiter) or math.min(ttlOf(waiter), ${PROVISIONAL_TTL})
      local number, shorter = grant(owner, fence, waiter, px, known(fence))
      if ours then call('HDEL', fence, 'provisional') else call('HSET', fence, 'provisional', waiter) end
      if ours or tell(owner, queue, waiter, number) then
        local after = shorter and first(queue)
        while after and not tell(owner, queue, after) do after = first(queue) end
        if ours then
          reply[#reply + 1] = waiter
          reply[#reply + 1] = number
          reply[#reply + 1] = run(queue, client)
        elseif first(queue) then
          reply[#reply + 1] = ''
          reply[#reply + 1] = (i - base) / 3
          reply[#reply + 1] = ''
        end
        return
      end
      waiter = first(queue)
    end
    call('DEL', owner)
    call('HDEL', fence, 'provisional')
  end
  local function takeUp(i, client, asker, reply)
    local is = known(KEYS[i + 2])
    local silent = is[3]
    if silent then
      if clientOf(silent) ~= (asker and clientOf(asker) or client) then drop(KEYS[i + 1], clientOf(silent)) end
      call('HDEL', KEYS[i + 2], 'provisional')
    end
    local waiter = first(KEYS[i + 1])
    if not waiter or waiter == asker then return is end
    handOver(i, client, reply)
  end
  local function giveUp(i, tokens, number, reply)
    local holder, latest, mine = call('GET', KEYS[i]), latestOf(tokens), false
    for token in string.gmatch(tokens, '%S+') do mine = mine or token == holder end
    if mine and holder ~= latest then call('HSET', KEYS[i + 2], 'last', number) end
    if latest ~= tokens then
      for token in string.gmatch(tokens, '%S+') do call('ZREM', KEYS[i + 1], token) end
    end
    if mine then handOver(i, clientOf(latest), reply)
    elseif not holder then takeUp(i, clientOf(latest), nil, reply) end
    return mine
  end
`;
