-- One step on a lock whose waiters are served in the order in which they came.
-- Such a lock is a hash with a queue, see line.lua. While it is held, n is 1, e until when, h the token, and the field
-- of the token until when, 0, the fence, and the line about the holder; l, if a claim without a place listens for the
-- release. Times are in ms of the server's clock.
-- A release takes the lock for the first waiter that is alive, until it would lose its place, and publishes the mark
-- and the fence to it. The mark says which request of the waiter was the last before the grant: its lease counts from
-- there. A waiter without a mark, as those of earlier versions, is notified that it is its turn, and so is any waiter
-- if no fence can be drawn: a free lock with waiters belongs to the first of them, which asks for it.
-- KEYS: the lock; the counter of fences for an acquire, and for a withdrawal that takes the lock for the first waiter.
-- ARGV: the number of the call; the operation; the token; then for a renewal the lease in ms, and for an acquire the
-- lease, two that are not used, 1 if it waits, one that is not used, the line about the holder, and the mark.
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result:
--   acquire   the fence; {fence} of a lock that the token has already; {-1, number of permits} of a semaphore;
--             {ms to wait or -1, value or ''} if the lock is taken, or it is the turn of another waiter
--   renew     1, or 0 if the token does not have the lock
--   withdraw  1, or 0 if the token did not have the lock
-- A value that is held exclusively has room for one more waiter while it is shorter than LONGEST: one place, the mark
-- of a reader, and the field that says that the key was left, then end within the part that is read. A hash has room
-- while it has fewer fields than ROOM. A hash with more than FIELDS, which are those of a full queue and its holders,
-- is no lock, and never read or deleted.
local LONGEST, ROOM, FIELDS = 454, 10000, 20016
local name, operation, token = KEYS[1], ARGV[2], ARGV[3]
local acquires, waits = operation == 'acquire', ARGV[7] == '1'
local wrong = 'WRONGTYPE the key holds something that is no lock'

local kind = call('TYPE', name)
kind = kind.ok or kind
if kind == 'string' then
  -- Held exclusively by a claim without a place. This claim gets its turn behind it, or gives its turn up.
  local value = call('GETRANGE', name, 0, 511)
  if not string.find(value, '^%x+ %d+%+%d+ ') then
    return acquires and redis.error_reply(wrong) or done(0)
  end
  local mark, stands = string.match(value, ' %??!$') or '', false
  local entry = acquires and waits and ' >' .. token .. ':' .. text(now + ALIVE) or ''
  local function keeps(waiter, alive)
    local own = waiter == token
    stands = stands or own
    return own and entry or tonumber(alive) <= now and '' or nil
  end
  local changed = string.gsub(string.sub(value, 1, #value - #mark), ' >(%x+):(%d+)', keeps)
  if not stands and #changed + #mark < LONGEST then
    changed, mark = changed .. entry, mark == '' and entry ~= '' and ' !' or mark
  end
  local left = call('PTTL', name)
  if changed .. mark ~= value and left > 0 then
    try('SET', name, changed .. mark, 'PX', left)
  end
  return done(acquires and { left, value } or 0)
elseif kind ~= 'hash' and acquires and kind ~= 'none' then
  return redis.error_reply(wrong)
elseif kind ~= 'hash' and not acquires then
  return done(0)
elseif kind == 'hash' and call('HLEN', name) > FIELDS then
  return acquires and redis.error_reply(wrong) or done(0)
end
local found = call('HMGET', name, 'f', 'q', 'n', 'e', 'h', 'l', '?' .. token, token, 'of', 'F', 'r')
local last, head = tonumber(found[1]), tonumber(found[2]) or 1
local n, ends, holder, listens, own = tonumber(found[3]), tonumber(found[4]), found[5], found[6], found[8]
local place = found[7] and tonumber(string.match(found[7], '^%d+'))

-- Keeps the hash as long as the longest of its entries.
local function keep(least)
  if call('PTTL', name) < least then
    call('PEXPIRE', name, text(least))
  end
end

-- Returns the first waiter that is alive, and until when it is.
local function first()
  local waiter, alive
  waiter, head, alive = first_in_line(head, last, acquires and token)
  return waiter, alive
end

-- Takes a place in the queue, if there is room, or keeps it. The last place is stored in `field`.
local function stand(field)
  if not place and call('HLEN', name) >= ROOM then
    return
  elseif not place then
    last = last + 1
    place = last
    call('HSET', name, field, last)
  end
  local mark = ARGV[10] ~= '' and ' ' .. ARGV[10] .. ' ' .. ARGV[9] or ''
  local alive = text(now + ALIVE)
  call('HSET', name, 'q', head, 'q' .. place, token .. ' ' .. alive, '?' .. token, place .. mark)
  keep(ALIVE)
end

if kind == 'hash' and not last then
  -- Readers hold the lock, or it is a semaphore.
  local chance = tonumber(found[11]) or 0
  last = tonumber(found[10]) or 0
  if operation == 'renew' or operation == 'withdraw' and not place then
    return done(0)
  elseif operation == 'withdraw' then
    call('HDEL', name, 'q' .. place, '?' .. token)
    if not first() then
      -- The claims that it kept out may be let in.
      call('HDEL', name, 'F', 'q')
      if listens then
        try('PUBLISH', name, '')
      end
    end
    return done(0)
  elseif not n or not ends then
    return redis.error_reply(wrong)
  elseif found[9] then
    return done({ -1, tonumber(found[9]) })
  end
  if n > 0 and ends <= now then
    n, ends = purge()
  end
  if n > 0 or chance > now then
    local waiter = first()
    if waits then
      stand('F')
    end
    -- Only the first waiter has a reason to ask when one of them ends.
    local left = (not waiter or waiter == token) and math.max((n > 0 and ends or chance) - now, 1) or -1
    return done({ left, n > 0 and shown(holder, FIELDS) or '' })
  end
  keep_for_line(last, head)
  holder = false
end
last = last or 0
local held = n == 1 and ends > now
own = held and own

-- Takes the free lock for the first waiter, or notifies it that it is its turn. Returns whether there is a waiter.
local function pass_on(tells)
  local waiter, alive = first()
  if not waiter then
    return false
  end
  local mark, line = string.match(call('HGET', name, '?' .. waiter) or '', '^%d+ (%d+) (.*)$')
  if mark and KEYS[2] then
    draw_first(KEYS[2])
  end
  if not mark or not fence then
    call('HSET', name, 'q', head)
    if tells then
      try('PUBLISH', name .. '#' .. waiter, '')
    end
    return true
  end
  call('HDEL', name, 'q' .. head, '?' .. waiter, holder or waiter)
  local value = alive .. ' 0 ' .. text(fence) .. ' ' .. line
  held, holder, ends = true, waiter, tonumber(alive)
  call('HSET', name, 'q', head, 'n', 1, 'e', alive, 'h', waiter, waiter, value)
  keep(ends - now)
  try('PUBLISH', name .. '#' .. waiter, mark .. ' ' .. text(fence))
  return true
end

if operation == 'renew' then
  if not own then
    return done(0)
  end
  local lease = tonumber(ARGV[4])
  local expires = text(now + lease)
  begin_in_any_case(token)
  call('HSET', name, 'e', expires, token, expires .. string.match(own, '^%d+( .*)$'))
  keep(lease)
  return done(1)
end

if operation == 'withdraw' then
  if place then
    call('HDEL', name, 'q' .. place, '?' .. token)
  end
  if own then
    begin_in_any_case(token)
    call('HSET', name, 'n', 0)
    call('HDEL', name, token, 'h')
    holder = nil
  end
  if (own or place and not held) and not pass_on(true) then
    call('DEL', name)
    if listens then
      try('PUBLISH', name, '')
    end
  end
  return done(own and 1 or 0)
end

local lease, who = tonumber(ARGV[4]), ARGV[9]
if own then
  -- The reply to an earlier attempt was lost.
  local rest, known = string.match(own, '^%d+( 0 (%d+) .*)$')
  if not known then
    return redis.error_reply('ERR somebody removed the fence from the lock; do not edit locks')
  end
  local expires = text(now + lease)
  begin_in_any_case(token)
  call('HSET', name, 'e', expires, token, expires .. rest)
  keep(lease)
  return done({ tonumber(known) })
end

local waiter = first()
if not held and waiter and waiter ~= token then
  -- The holder's lease has ended without a release.
  pass_on(false)
  waiter = first()
end
if held or waiter and waiter ~= token then
  if waits then
    stand('f')
  end
  -- Only the first waiter has a reason to ask when the lease ends.
  local left = held and (not waiter or waiter == token) and math.max(ends - now, 1) or -1
  return done({ left, held and holder and call('HGET', name, holder) or '' })
end

-- The counter first, as it can be refused: a server that is full, read-only or short of replicas then grants nothing.
draw_first(KEYS[2])
if refused then
  return refused
end
if place then
  call('HDEL', name, 'q' .. place, '?' .. token)
end
if holder then
  call('HDEL', name, holder)
end
local expires = text(now + lease)
local value = expires .. ' 0 ' .. text(fence) .. ' ' .. who
call('HSET', name, 'f', last, 'q', head, 'n', 1, 'e', expires, 'h', token, token, value)
keep(lease)
return done(fence)
