import { createHash } from 'node:crypto';
import { LONGEST_TTL } from '../redis-lock.options.js';

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
 * A token is `<client id>:<sequence>.<secret>:<ttl>`, see tokens.ts, so that a script can tell whose it is and how long it may
 * last. A sequence that begins with 's' belongs to a waiter that listens to a sharded channel. The name of a token is the
 * token without its secret: messages show names, and never a secret.
 *
 * The fence hash holds:
 *   last         fencing token of the latest grant
 *   since        fencing token below which commits may have been forgotten
 *   believed     server time in ms until which waiters may believe some holder's lease to last
 *   provisional  token that was handed the lock and has not asked for it or renewed it yet
 *   kept         server time in ms at which the hash itself ends
 *   silent       clients that never came for a lock they were handed, with a space between them: their places are skipped
 *   gone         clients that nobody listens for, while one script call after the other clears their places away
 *   terms        `<n> <token>`: the last extension of that token's lease, see EXTEND
 *   c:<place>    a commit, `<fencing token>=<token>#<n>`, see commitRecord
 *   guard        the commit that was last refused
 */

/**
 * How often a client may pass a lock on before Redis knows of it. Each time adds 1 to the fencing token, so the next
 * grant that Redis numbers by itself is further than that above the last one it knows of.
 */
export const MAX_UNHEARD = 32;

/** Commits that a resource remembers at most, and how many are left when there were more: the latest. */
const MOST_COMMITS = 256;
const COMMITS_LEFT = 128;

/** Clients that are remembered as silent, the latest ones; and as gone, while their places are cleared away. */
const MOST_SILENT = 256;
const MOST_GONE = 512;

/**
 * What one script call spends on places of clients that are gone: 1 for each place, and more for each client that it has to
 * try. The next call goes on. It bounds how long a script keeps Redis from everybody else.
 */
const BUDGET = 500;
const COST_OF_CLIENT = 5;
/** Places that are looked at together. */
const LOOK = 100;

/** ms after which an asker tries again when a script had to leave places of clients that are gone to the next call. */
export const MORE_TO_CLEAR = 1;

/** Waiters of one client that are named to it as the next in line. */
const LONGEST_RUN = 16;

/**
 * How the n-th commit under a grant is recorded.
 *
 * @param place one that no unanswered commit of this client uses for the resource, so that a record stays for as long as
 * somebody may ask for it; the client's next commit may overwrite it then
 */
export function commitRecord(token: string, fencingToken: number, n: number, place: number) {
  const client = token.slice(0, token.indexOf(':'));
  return { field: `c:${client}:${place}`, record: `${fencingToken}=${token}#${n}` };
}

export const TOKEN = `
  local call, base = redis.call, 1 -- base: where the KEYS of the claim at work begin
  local function clientOf(token) return string.match(token, '^[^:]*') end
  local function nameOf(token) return (string.gsub(token, '%.[^:]*', '', 1)) end
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
        if not done and type(reply) ~= 'table' then
          -- Before Redis 7, errors are strings that begin with the line: '@user_script: 12: -OOM command not allowed'.
          reply = {err = (string.gsub(tostring(reply), '^@user_script: %d+: %-?', ''))}
        end
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
 * record: sets fields of the fence, which from then on outlives a lease of that ttl by another ttl and 60 s. It tells Redis
 * so for a minute more than needed, so that it need not with each grant; then it also forgets the oldest commits, if there
 * are too many: whoever asks for one of those gets 'unknown', by `since`.
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
  local function forgetCommits(fence)
    if call('HLEN', fence) <= ${MOST_COMMITS} then return end
    local fields, commits = call('HGETALL', fence), {}
    for f = 1, #fields, 2 do
      local number = string.find(fields[f], '^c:') and tonumber(string.match(fields[f + 1], '^%d+'))
      if number then commits[#commits + 1] = {number, fields[f]} end
    end
    table.sort(commits, function(one, other) return one[1] < other[1] end)
    local since = tonumber(call('HGET', fence, 'since')) or 0
    for c = 1, #commits - ${COMMITS_LEFT} do
      since = math.max(since, commits[c][1] + 1)
      call('HDEL', fence, commits[c][2])
    end
    call('HSET', fence, 'since', format(since))
  end
  local function record(fence, ttl, kept, ...)
    local needed = millis() + 2 * ttl + 60000
    local ends = tonumber(kept) or 0
    if needed <= ends then
      call('HSET', fence, ...)
      if ends > needed + 120000 then forgetCommits(fence) end -- after a long lease, it is not to be said for long
      return
    end
    kept = format(needed + 60000)
    call('HSET', fence, 'kept', kept, ...)
    call('PEXPIREAT', fence, kept)
    forgetCommits(fence)
  end
`;

/*
 * known: what scripts look at in the fence, by the numbers LAST .. TERMS.
 *
 * lengthen: makes a lease last for ttl ms from now, unless it lasts longer already: a request that arrives late, or twice,
 * never takes from a holder what it was told. termsOf: the number of the last extension of that token's lease, or 0.
 */
export const FENCE = `
  local LAST, BELIEVED, PROVISIONAL, KEPT, SILENT, GONE, TERMS = 1, 2, 3, 4, 5, 6, 7
  local function known(fence)
    return call('HMGET', fence, 'last', 'believed', 'provisional', 'kept', 'silent', 'gone', 'terms')
  end
  local function lengthen(owner, ttl)
    if call('PTTL', owner) < ttl then call('PEXPIRE', owner, ttl) end
  end
  local function termsOf(is, token)
    local n, whose = string.match(is[TERMS] or '', '^(%d+) (.*)$')
    return whose == token and tonumber(n) or 0
  end
`;

/*
 * grant: makes the token owner for px ms and answers its fencing token. That is the server's clock in microseconds, so that
 * it also grows across a lost hash; and it is above all that a client which died can have given itself since the last one
 * known here, see passOn. Such a client says the number itself. The owner is set last: whatever fails before it leaves no
 * lock behind. Also answers whether waiters may believe that the lock is held for longer than it now will be.
 */
export const GRANT = `
  local function grant(owner, fence, token, px, is, number)
    local last, believed, ttl = tonumber(is[LAST]), tonumber(is[BELIEVED]) or 0, ttlOf(token)
    if not number then number = math.max(last and last + 1 + ${MAX_UNHEARD} or 0, micros()) end
    local ends = millis() + ttl
    local shorter = ends < believed
    number, ends = format(number), format(math.max(ends, believed))
    if last then record(fence, ttl, is[KEPT], 'last', number, 'believed', ends)
    else record(fence, ttl, is[KEPT], 'last', number, 'believed', ends, 'since', number) end
    call('SET', owner, token, 'PX', px)
    return number, shorter
  end
`;

/*
 * isHeard: whether somebody listens on the waiter's channel, on this very server; nobody does when the client is gone. It is
 * asked before anything is said: replicas hear what their primary publishes, and a client that listens at one must not
 * begin with a lock that went to somebody else. What is refused counts as heard: the provisional TTL is the net.
 *
 * nextWaiter: the first in line whose client is alive, as the exempt one is. Takes the places before it out of the line: those
 * of clients that are gone, and what is no token. Also answers whether the budget ended that before it was known.
 *
 * run: names of those of the client's waiters that come before any other's, the first one first.
 *
 * tell: sends a waiter a message on its client's channel. It is JSON: [name, fencing token, seal, run, owner key], where the fencing token is '' when the waiter only has to ask. The seal can be
 * made by nobody who does not know the waiter's secret, and holds for this fencing token, run and key alone.
 *
 * outOf: the clients whose places are skipped; revive: not any more, the client has asked.
 *
 * nudge: has the next live one in line ask, because the lease that it believes in has become shorter. Answers whether the
 * budget ended that before.
 *
 * handOver: gives a lock whose owner is done with it to the first live waiter, or deletes it.
 * A waiter of the same client gets it for its whole TTL and stands in the reply, for the caller to begin; should the reply
 * be lost, that client asks for all its waiters. Any other gets it provisionally and is sent a message. Bookkeeping comes
 * first, so that the woken waiter finds it done. The places are taken out of the line before anything else is written: when
 * memory is full, Redis lets a script that has written go on.
 *
 * Adds to the reply, in fours, what the caller has to do: token, index of the resource within its claim, fencing token, and run
 * of a waiter of its own that begins; or '', index, 'later', '' where the lock went elsewhere provisionally while others wait:
 * somebody has to look after it; or '', index, 'now', '' where places of clients that are gone are left for another call.
 *
 * takeUp: the same for a lock that is free although somebody waits: its owner is dead. The client of a provisional owner that
 * never came for it is silent from then on, unless that is the client that asks now: its places are skipped until it asks.
 * Answers what is known of a lock that the asker may have, and whether places are left for another call: then nobody may.
 *
 * giveUp: hands over what one of the tokens has. They are those of a client that passed the lock on from one to the
 * other, the latest first, of which Redis may not know yet: the number is the latest one's fencing token.
 */
export const HAND_OVER = `
  local budget = ${BUDGET}
  local function isToken(token)
    local ttl = tonumber(string.match(token, '^[^:%s]+:s?%d+%.?[^:%s]*:(%d+)$'))
    return ttl and ttl > 0 and ttl <= ${LONGEST_TTL}
  end
  local function channelOf(owner, waiter)
    local client, sharded = string.match(waiter, '^([^:]*):(s?)')
    local prefix, tag = string.match(owner, '^(.*)({[^}]*})')
    if sharded == 's' then return prefix .. 'wake:' .. tag .. ':' .. client, 'SPUBLISH', 'SHARDNUMSUB' end
    return prefix .. 'wake:' .. client, 'PUBLISH', 'NUMSUB'
  end
  local function isHeard(owner, waiter)
    local channel, _, count = channelOf(owner, waiter)
    local counted = redis.pcall('PUBSUB', count, channel)
    return counted.err or counted[2] ~= 0
  end
  local function nextWaiter(i, gone, exempt)
    local owner, queue, heard = KEYS[i], KEYS[i + 1], {[exempt or ''] = exempt ~= nil}
    while budget > 0 do
      local tokens, dead = call('ZRANGE', queue, 0, ${LOOK - 1}), {}
      if #tokens == 0 then return nil, false end
      for _, token in ipairs(tokens) do
        local client = clientOf(token)
        if isToken(token) and not gone[client] then
          if not heard[client] then
            heard[client], budget = isHeard(owner, token), budget - ${COST_OF_CLIENT}
            gone[client] = not heard[client] or nil
          end
          if heard[client] then
            if #dead > 0 then call('ZREM', queue, unpack(dead)) end
            return token, false
          end
        end
        dead[#dead + 1] = token
      end
      call('ZREM', queue, unpack(dead))
      budget = budget - #dead
    end
    return nil, call('EXISTS', queue) == 1
  end
  local function run(queue, client)
    local names = {}
    for _, token in ipairs(call('ZRANGE', queue, 0, ${LONGEST_RUN - 1})) do
      if clientOf(token) ~= client then break end
      names[#names + 1] = nameOf(token)
    end
    return table.concat(names, ' ')
  end
  local function tell(owner, queue, waiter, number)
    local channel, publish = channelOf(owner, waiter)
    local message = {nameOf(waiter), '', '', '', owner}
    if number then
      message[2], message[4] = number, run(queue, clientOf(waiter))
      message[3] = redis.sha1hex(table.concat({number, message[4], owner, waiter}, '\\n'))
    end
    redis.pcall(publish, channel, cjson.encode(message))
  end
  local function addTo(set, clients)
    for client in string.gmatch(clients or '', '%S+') do set[client] = true end
    return set
  end
  local function outOf(is) return addTo(addTo({}, is[SILENT]), is[GONE]) end
  local function setClients(fence, is, at, field, clients)
    is[at] = #clients > 0 and table.concat(clients, ' ')
    call('HDEL', fence, field) -- first: when memory is full, Redis lets a script that has written go on
    if is[at] then call('HSET', fence, field, is[at]) end
  end
  local function addSilent(fence, is, client)
    local clients = {client}
    for each in string.gmatch(is[SILENT] or '', '%S+') do
      if each ~= client and #clients < ${MOST_SILENT} then clients[#clients + 1] = each end
    end
    setClients(fence, is, SILENT, 'silent', clients)
  end
  local function revive(fence, is, client)
    for at, field in pairs({[SILENT] = 'silent', [GONE] = 'gone'}) do
      local clients, isIn = {}, false
      for each in string.gmatch(is[at] or '', '%S+') do
        if each == client then isIn = true else clients[#clients + 1] = each end
      end
      if isIn then setClients(fence, is, at, field, clients) end
    end
  end
  local function nudge(i, gone)
    local waiter, more = nextWaiter(i, gone)
    if waiter then tell(KEYS[i], KEYS[i + 1], waiter) end
    return more
  end
  local function lookAfter(i, when, reply)
    for _, part in ipairs({'', (i - base) / 3, when, ''}) do reply[#reply + 1] = part end
  end
  local function handOver(i, client, reply)
    local owner, queue, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    local is = known(fence)
    local gone = outOf(is)
    gone[client] = nil
    local waiter, more = nextWaiter(i, gone, client ~= '' and client or nil)
    if waiter then
      call('ZREM', queue, waiter)
      local ours = clientOf(waiter) == client
      local px = ours and ttlOf(waiter) or math.min(ttlOf(waiter), ${PROVISIONAL_TTL})
      local number, shorter = grant(owner, fence, waiter, px, is)
      if ours then call('HDEL', fence, 'provisional') else call('HSET', fence, 'provisional', waiter) end
      if not ours then tell(owner, queue, waiter, number) end
      if shorter then nudge(i, gone) end
      if ours then
        for _, part in ipairs({waiter, (i - base) / 3, number, run(queue, client)}) do reply[#reply + 1] = part end
      elseif call('EXISTS', queue) == 1 then
        lookAfter(i, 'later', reply)
      end
    else
      call('DEL', owner)
      call('HDEL', fence, 'provisional')
    end
    if more then
      local clients = {}
      for each in pairs(gone) do
        if #clients < ${MOST_GONE} then clients[#clients + 1] = each end
      end
      if is[LAST] then setClients(fence, is, GONE, 'gone', clients) end
      lookAfter(i, 'now', reply)
    elseif is[GONE] then
      call('HDEL', fence, 'gone')
    end
    return more
  end
  local function takeUp(i, client, asker, reply)
    local queue, fence = KEYS[i + 1], KEYS[i + 2]
    local is = known(fence)
    local caller = asker and clientOf(asker) or client
    if is[PROVISIONAL] then
      call('HDEL', fence, 'provisional')
      local silent = clientOf(is[PROVISIONAL])
      if silent ~= caller and is[LAST] then addSilent(fence, is, silent) end
    end
    if asker then revive(fence, is, caller) end
    local gone = outOf(is)
    gone[caller] = nil
    local waiter, more = nextWaiter(i, gone, caller ~= '' and caller or nil)
    if not waiter or waiter == asker then
      if more then lookAfter(i, 'now', reply)
      elseif is[GONE] then call('HDEL', fence, 'gone') end
      return is, more
    end
    return nil, handOver(i, client, reply)
  end
  local function giveUp(i, tokens, number, reply)
    local holder, latest, mine = call('GET', KEYS[i]), latestOf(tokens), false
    if latest ~= tokens then
      for token in string.gmatch(tokens, '%S+') do call('ZREM', KEYS[i + 1], token) end
    end
    for token in string.gmatch(tokens, '%S+') do mine = mine or token == holder end
    if mine and holder ~= latest and call('EXISTS', KEYS[i + 2]) == 1 then call('HSET', KEYS[i + 2], 'last', number) end
    if mine then handOver(i, clientOf(latest), reply)
    elseif not holder then takeUp(i, clientOf(latest), nil, reply) end
    return mine
  end
`;
