-- Leaves the share of a reader, or permits, under the token of a baton, or takes over a share that was left so. See
-- shares.lua for what is stored. A share that is left counts as before: n and of stay as they are.
-- KEYS: the lock; to take over, the counter of fences.
-- ARGV: the number of the call; the operation; the token; that of the baton; then:
--   leave  for how many ms; what is put before the line about the holder
--   take   lease in ms; the number of permits, 0 of a reader; the line about the holder
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result:
--   leave  1, 2 if a client listens, or 0 if the token does not have a share
--   take   the fence; {fence} of a share that the token has already; {ms to wait, value} if no share was left
local name, operation, token, left = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local found = try('HMGET', name, token, left, 'e', 'h', 'l', 'of', 'f')
if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then
  return found
elseif found.err then
  -- The lock is held exclusively, or the key is no lock.
  local value = operation == 'take' and try('GETRANGE', name, 0, 511) or ''
  return type(value) == 'table' and value or done(value == '' and 0 or { call('PTTL', name), value })
end
local ends, last, listens, of = tonumber(found[3]), found[4], found[5], found[6]

-- Reads the stored value of a share that has not expired.
local function share(value)
  local until_ms, taken, fence, who = string.match(value or '', '^(%d+) (%d+) (%d+) (.*)$')
  until_ms = tonumber(until_ms)
  if until_ms and until_ms > now and not found[7] then
    return { until_ms = until_ms, taken = taken, fence = fence, who = who }
  end
end
-- Stores a share. No share ends before `e`, and the lock is kept for as long as the longest.
local function put(field, until_ms, rest)
  call('HSET', name, 'h', field, field, text(until_ms) .. ' ' .. rest)
  if not ends or until_ms < ends then
    call('HSET', name, 'e', text(until_ms))
  end
  if call('PTTL', name) < until_ms - now then
    call('PEXPIRE', name, text(until_ms - now))
  end
end
-- Returns the error of a command that this user may not use to move a share: a share of which only the old entry is
-- removed would still count.
local function denied_to_move()
  local delete, set = { 'HDEL', name, '-' .. token }, { 'HSET', name, 'a', 'b', 'c' }
  return denied(delete, set, { 'PTTL', name }, { 'PEXPIRE', name, 'x' })
end
local own, kept = share(found[1]), share(found[2])

if operation == 'leave' then
  local until_ms = now + tonumber(ARGV[5])
  if kept then
    -- A share that was left already is kept no longer than before: this may be a request that arrives late.
    until_ms = math.min(until_ms, kept.until_ms)
  elseif own then
    kept = own
    kept.who = ARGV[6] .. own.who
  else
    return done(0)
  end
  -- A server that is full refuses commands that may need memory, unless the script has changed something before: the
  -- first command here deletes.
  local why = denied_to_move()
  if why then
    return why
  end
  call('HDEL', name, token)
  put(left, until_ms, kept.taken .. ' ' .. kept.fence .. ' ' .. kept.who)
  if listens then
    try('PUBLISH', name, '')
  end
  return done(listens and 2 or 1)
end

local lease, take, who = tonumber(ARGV[5]), ARGV[6], ARGV[7]
if own then
  put(token, now + lease, own.taken .. ' ' .. own.fence .. ' ' .. own.who)
  return done({ tonumber(own.fence) })
end
local is_left = kept and string.sub(kept.who, 1, 7) == 'left=1 ' and (of and kept.taken or '0') == take
if not is_left then
  local value = last and call('HGET', name, last)
  return done({ math.max((ends or now) - now, 1), share(value) and value or '' })
end
draw_first(KEYS[2])
local why = refused or denied_to_move()
if why then
  return why
end
call('HDEL', name, left)
put(token, now + lease, kept.taken .. ' ' .. text(fence) .. ' ' .. who)
return done(fence)
