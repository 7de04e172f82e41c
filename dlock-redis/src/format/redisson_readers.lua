-- One step on a lock with readers and writers, as Redisson's RReadWriteLock has it.
-- A lock is a hash: mode, read or write; <owner>, how often it reads; <owner>:write, how often it writes, or for an
-- owner of dlock the fence and the line about it. Each time that an owner reads there is a key
-- {lock}:<owner>:rwlock_timeout:<n> that expires with it, and for an owner of dlock has the fence and the line about
-- it. The hash expires with the last of them. In the hash beside: a, until when a claim of dlock is alive that waits to
-- read; c, until when only readers are let in, since one of them waited while the lock was written.
-- KEYS: the lock; the hash beside; for an acquire the counter of fences.
-- ARGV: the number of the call; the operation; the channel; 1 on a cluster; the owner; the lease in ms; read or write;
-- what stands before an owner in the name of its key; 1 if it keeps newcomers out while it waits; 1 if it listens; the
-- line about the holder; then, if a release by force means some holders only, their fields.
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result:
--   acquire   the fence; {fence} of a lock that the owner has already; {ms to wait, field, value} if it is taken
--   renew, downgrade  1, or 0 if the owner does not have the lock
--   withdraw  1, or 0 if the owner did not have the lock
--   look      {remaining ms of the first, its field, its value, ...}
--   force     1, 0 if the lock was free, or 3 if a client holds it that is not meant
local CHANCE, JOIN, ENTRIES = 100, 5, 1000
local prefix = ARGV[8]

local kind = call('TYPE', name)
kind = kind.ok or kind
local mode = kind == 'hash' and call('HGET', name, 'mode')
if kind ~= 'none' and mode ~= 'read' and mode ~= 'write' then
  if operation == 'renew' or operation == 'withdraw' then
    return done(0)
  end
  return redis.error_reply('WRONGTYPE the key holds something that is no read-write lock')
elseif mode and operation ~= 'renew' and operation ~= 'withdraw' and call('HLEN', name) > FIELDS then
  return redis.error_reply('WRONGTYPE the key holds something that is no read-write lock')
end
local lease, reads = tonumber(ARGV[6]), ARGV[7] == 'read'

local function hold(whose, number)
  return prefix .. whose .. ':rwlock_timeout:' .. number
end
local function writes(field)
  return string.sub(field, -6) == ':write'
end
-- Returns the longest time that a reader has left, or that of the first if any will do. Removes the expired readers of
-- dlock, which Redisson would not, as long as there are others.
local function reading(any)
  local most = 0
  for _, field in ipairs(call('HKEYS', name)) do
    if field ~= 'mode' and not writes(field) then
      local count, least = tonumber(call('HGET', name, field)) or 0, 0
      for number = 1, math.min(count, ENTRIES) do
        least = math.max(least, call('PTTL', hold(field, number)))
      end
      most = math.max(most, least)
      if any and most > 0 then
        return most
      elseif least == 0 and string.find(field, ':' .. string.rep('%x', 32) .. '$') then
        call('HDEL', name, field)
      end
    end
  end
  return most
end

if operation == 'look' or operation == 'force' then
  local held, over, meant = {}, {}, {}
  for n = 12, #ARGV do
    meant[ARGV[n]] = true
  end
  for _, field in ipairs(mode and #ARGV > 11 and call('HKEYS', name) or {}) do
    local is_held = writes(field)
    for number = 1, field ~= 'mode' and math.min(tonumber(call('HGET', name, field)) or 0, ENTRIES) or 0 do
      is_held = is_held or call('PTTL', hold(field, number)) > 0
    end
    if is_held and not meant[field] then
      return done(3)
    end
  end
  for _, field in ipairs(mode and call('HKEYS', name) or {}) do
    if writes(field) then
      held[#held + 1] = call('PTTL', name)
      held[#held + 1] = field
      held[#held + 1] = call('HGET', name, field)
    elseif field ~= 'mode' then
      local left, value = 0, nil
      for number = 1, math.min(tonumber(call('HGET', name, field)) or 0, ENTRIES) do
        local key = hold(field, number)
        left, value = math.max(left, call('PTTL', key)), try('GETRANGE', key, 0, 511)
        if operation == 'force' then
          call('DEL', key)
        end
      end
      if left > 0 and type(value) == 'string' then
        held[#held + 1] = left
        held[#held + 1] = field
        held[#held + 1] = value
      else
        over = { call('PTTL', name), field, '' }
      end
    end
  end
  if operation == 'look' then
    -- A hold that has expired, or has lost its owner, keeps others out for as long as the hash exists.
    return done((#held > 0 or not mode) and held or #over > 0 and over
      or { call('PTTL', name), mode == 'write' and ':write' or '', '' })
  elseif mode then
    call('DEL', name)
    notify(channel, '1')
  end
  return done(mode and 1 or 0)
end

if operation == 'renew' or operation == 'downgrade' then
  local wrote = mode and call('HGET', name, owner .. ':write')
  local renewed = wrote and 1 or 0
  if wrote and operation == 'downgrade' then
    -- Redisson publishes nothing at a downgrade, and its readers go on waiting: dlock notifies them.
    begin_in_any_case()
    call('SET', hold(owner, 1), wrote, 'PX', ARGV[6])
    call('HSET', name, 'mode', 'read', owner, 1)
    call('HDEL', name, owner .. ':write')
    call('HDEL', side, 'w', 'a', 'c')
    notify(channel, '1')
  elseif mode and not wrote and call('HEXISTS', name, owner) == 1 then
    renewed = call('PEXPIRE', hold(owner, 1), lease)
  end
  if renewed == 1 then
    keep(name, lease)
  end
  return done(renewed)
end

if operation == 'withdraw' then
  local waits, alive = unpack(call('HMGET', side, 'w', 'a'))
  local _, prefers = kept_out(waits)
  if prefers then
    call('HDEL', side, 'w')
  end
  local wrote, read, left, all = 0, 0, 0, 0
  if mode then
    wrote, read = call('HDEL', name, owner .. ':write'), call('HDEL', name, owner)
    left, all = call('PTTL', hold(owner, 1)), call('PTTL', name)
    call('DEL', hold(owner, 1))
  end
  if wrote + read == 0 then
    if prefers then
      notify(channel, '1')
    end
    return done(0)
  end
  local rest = 0
  if call('HLEN', name) > 1 and mode == 'read' then
    -- Only the reader with the longest time left ends the lock earlier by its release.
    rest = reading(left < all)
    if rest > 0 and left >= all then
      call('PEXPIRE', name, rest)
    end
  end
  if rest > 0 then
    return done(1)
  end
  call('DEL', name)
  if wrote == 1 and alive and tonumber(alive) > now then
    call('HSET', side, 'c', text(now + CHANCE))
    call('HDEL', side, 'a')
    keep(side, CHANCE)
  end
  -- All waiters have to ask if several may be let in, and otherwise one of each client.
  notify(channel, wrote == 1 and '1' or '0')
  return done(1)
end

local waits, chance = unpack(call('HMGET', side, 'w', 'c'))
chance = tonumber(chance) or 0
local field = reads and owner or owner .. ':write'
local value = mode and call('HGET', name, field)
if value then
  -- The reply to an earlier attempt was lost.
  local key = hold(owner, 1)
  value = not reads and value or call('GET', key)
  local known = value and tonumber(string.match(value, '^(%d+) '))
  if known then
    if reads then
      call('PEXPIRE', key, lease)
    end
    keep(name, lease)
    return done({ known })
  elseif value then
    return redis.error_reply('ERR somebody removed the fence from the lock; do not edit locks')
  end
  -- Its time is over.
  draw_first(KEYS[3])
  call('HDEL', name, field)
  if call('HLEN', name) == 1 then
    call('DEL', name)
    mode = false
  end
end

local out, ours = kept_out(waits)
if reads and chance > now then
  out = 0
end
local room = mode == 'read' and reads and call('HLEN', name) <= HOLDERS or not mode and (reads or chance <= now)
if not room or out > now then
  if ARGV[9] == '1' then
    prefer(waits)
  elseif reads and mode == 'write' and ARGV[10] == '1' then
    call('HSET', side, 'a', text(now + ALIVE))
    keep(side, ALIVE)
  end
  local left, first, shown = (room and out or chance) - now, '', ''
  if not room and mode then
    left = call('PTTL', name)
    for _, other in ipairs(call('HKEYS', name)) do
      if other ~= 'mode' then
        first = other
        shown = writes(other) and call('HGET', name, other) or try('GETRANGE', hold(other, 1), 0, 511)
        break
      end
    end
    shown = type(shown) == 'string' and shown or ''
  end
  return done({ left, first, shown })
end

-- The counter first, as it can be refused: a server that is full, read-only or short of replicas then changes nothing.
draw_first(KEYS[3])
if refused then
  return refused
end
local line = text(fence) .. ' ' .. ARGV[11]
if reads then
  call('SET', hold(owner, 1), line, 'PX', ARGV[6])
  call('HSET', name, 'mode', 'read', owner, 1)
else
  call('HSET', name, 'mode', 'write', field, line)
end
-- Without an expiry it would stay for ever.
local kept = not mode and try('PEXPIRE', name, ARGV[6])
if type(kept) == 'table' then
  try('DEL', name)
  try('DEL', hold(owner, 1))
  return kept
elseif mode then
  keep(name, lease)
end
if ours then
  call('HDEL', side, 'w')
end
if reads and chance > now + JOIN then
  -- The readers that waited with this one are let in now, and then it is the turn of the writers.
  call('HSET', side, 'c', text(now + JOIN))
end
return done(fence)
