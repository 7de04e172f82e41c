-- One step on a semaphore, as Redisson's RPermitExpirableSemaphore has it.
-- A semaphore is a number, that of the free permits, and a sorted set with 16 bytes for each permit that is taken, by
-- the time at which it ends. Redisson reads that time by the clocks of its clients, and takes back expired permits by
-- it: those of dlock end later there than their holders believe, by a tenth of the lease. In the hash beside: for each
-- claim of dlock how many permits, the fence, and the line about it.
-- KEYS: the semaphore; the hash beside; the sorted set; for an acquire the counter of fences.
-- ARGV: the number of the call; the operation; the channel; 1 on a cluster; the claim; the lease in ms; how many
-- permits there are, or write for a claim that takes the key for a lock; how many are taken; 1 if it keeps newcomers
-- out while it waits; -; the line about the holder; then the permits of the claim, or, if a release by force means some
-- only, these in hexadecimal.
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result:
--   acquire   the fence; {fence} of permits that the claim has already; {ms to wait, permit, value} if too many are
--             taken; {-1, number of permits} of a semaphore, or {-1, 0} of a lock, that cannot be what was asked for
--   renew     1, or 0 if the claim does not have its permits
--   withdraw  1, or 0 if the claim did not have any
--   look      {number of permits or 0, remaining ms or -1 of the first, its permit, its value, ...}
--   resize    the number before, or 0 without a semaphore; {-1, 0} of a lock
--   force     1, 0 if no permit was taken, or 3 if one is taken that is not meant
local AT_ONCE, STALE, MOST_PERMITS = 1000, 64, 1000000
local timeouts, lease = KEYS[3], tonumber(ARGV[6])
local ids = {}
for n = 12, #ARGV do
  ids[#ids + 1] = ARGV[n]
end

local kind = call('TYPE', name)
kind = kind.ok or kind
local free = kind == 'string' and string.match(call('GETRANGE', name, 0, 31), '^%-?%d+$')
if not free and kind ~= 'none' then
  if operation == 'renew' or operation == 'withdraw' then
    return done(0)
  elseif kind == 'hash' and operation ~= 'force' and operation ~= 'look' then
    return done({ -1, 0 })
  end
  return redis.error_reply('WRONGTYPE the key holds something that is no lock')
end
free = tonumber(free or nil)

local function hex(id)
  return (string.gsub(id, '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end))
end

local drops, adds = { 'HDEL', side, '-' }, { 'INCRBY', name, 'x' }

-- Expired permits come back before anything is decided by them.
if operation ~= 'look' then
  local back = 0
  repeat
    local over = call('ZRANGEBYSCORE', timeouts, 0, text(now), 'LIMIT', 0, AT_ONCE)
    if #over > 0 then
      if operation == 'acquire' then
        draw_first(KEYS[4])
      end
      local why = denied(drops, adds)
      if why then
        return why
      end
      call('ZREM', timeouts, unpack(over))
      for n = 1, #over do
        call('HDEL', side, hex(over[n]))
      end
      back = back + #over
    end
  until #over < AT_ONCE
  if back > 0 and free then
    free = call('INCRBY', name, back)
    if free > 0 then
      notify(channel, text(free))
    end
  end
end
local taken = call('ZCARD', timeouts)
local total = free and free + taken

-- Returns how many of the claim's permits are there: Redisson may have taken some of them back.
local function present()
  local found = 0
  for n = 1, #ids do
    if call('ZSCORE', timeouts, ids[n]) then
      found = found + 1
    end
  end
  return found
end

-- Puts those of the claim's permits that are there back into the semaphore. Returns how many they were.
local function give_back()
  local removed = 0
  for from = 1, #ids, AT_ONCE do
    removed = removed + call('ZREM', timeouts, unpack(ids, from, math.min(from + AT_ONCE - 1, #ids)))
  end
  if removed > 0 and free then
    free = call('INCRBY', name, removed)
  end
  return removed
end

local function put()
  begin_in_any_case()
  for from = 1, #ids, AT_ONCE do
    local members = {}
    for n = from, math.min(from + AT_ONCE - 1, #ids) do
      members[#members + 1] = text(now + lease + math.ceil(lease / 10))
      members[#members + 1] = ids[n]
    end
    call('ZADD', timeouts, unpack(members))
  end
  keep(side, 2 * lease)
end

if operation == 'look' then
  local held = { total or taken }
  -- Of too many permits only the last ones are read.
  local all = call('ZRANGE', timeouts, -FIELDS, -1, 'WITHSCORES')
  for n = 1, #all, 2 do
    local left, id = tonumber(all[n + 1]) - now, hex(all[n])
    if left > 0 then
      held[#held + 1] = left < 1e14 and left or -1
      held[#held + 1] = id
      held[#held + 1] = call('HGET', side, id) or ''
    end
  end
  return done(held)
end

if operation == 'resize' then
  if not total then
    return done(0)
  end
  free = call('INCRBY', name, text(tonumber(ARGV[7]) - total))
  if free > 0 then
    notify(channel, text(free))
  end
  return done(total)
end

if operation == 'force' then
  if taken == 0 then
    return done(0)
  elseif #ids > 0 then
    local meant = {}
    for n = 1, #ids do
      meant[ids[n]] = true
    end
    for _, id in ipairs(taken <= #ids and call('ZRANGE', timeouts, 0, -1) or { '' }) do
      if not meant[hex(id)] then
        return done(3)
      end
    end
  end
  call('DEL', timeouts, side)
  if total then
    call('SET', name, text(total))
  end
  notify(channel, text(total or taken))
  return done(1)
end

if operation == 'renew' then
  if present() < #ids then
    return done(0)
  end
  put()
  return done(1)
end

local waits = call('HGET', side, 'w')
local out, ours = kept_out(waits)

if operation == 'withdraw' then
  local why = denied(drops, adds)
  if why then
    return why
  end
  local removed = give_back()
  call('HDEL', side, owner, ours and 'w' or owner)
  if removed > 0 or ours then
    notify(channel, text(math.max(free or removed, 1)))
  end
  return done(removed > 0 and 1 or 0)
end

local of, take = tonumber(ARGV[7]), #ids
if total and (total < 0 or total > MOST_PERMITS or total == 0 and not of) then
  return redis.error_reply('WRONGTYPE the key holds something that is no lock')
elseif not of then
  return done({ -1, total or taken })
elseif total == 0 then
  return redis.error_reply('WRONGTYPE the number of permits of the semaphore was set to 0')
elseif total and total ~= of then
  return done({ -1, total })
end

local earlier = present()
if earlier > 0 then
  if earlier < take then
    draw_first(KEYS[4])
  end
  local why = denied(drops, adds)
  if why then
    return why
  end
end
if earlier > 0 and earlier < take then
  -- Redisson took some of them back: the rest of the earlier attempt is no grant.
  taken = taken - give_back()
  call('HDEL', side, owner)
elseif earlier > 0 then
  -- The reply to an earlier attempt was lost.
  local known = tonumber(string.match(call('HGET', side, owner) or '', '^%d+ (%d+) '))
  if not known then
    return redis.error_reply('ERR somebody removed the fence from the lock; do not edit locks')
  end
  put()
  return done({ known })
end

if (free or of - taken) < take or out > now then
  if ARGV[9] == '1' then
    prefer(waits)
  end
  local first = call('ZRANGE', timeouts, 0, 0, 'WITHSCORES')
  local left = out > now and out - now or first[2] and tonumber(first[2]) - now or -1
  local id = first[1] and hex(first[1]) or ''
  return done({ left < 1e14 and left or -1, id, call('HGET', side, id) or '' })
end

-- First everything that can be refused: a user without a right, and a server that is full, read-only or short of
-- replicas, then change nothing.
draw_first(KEYS[4])
refused = refused or denied(drops, { 'DECRBY', name, 'x' }, { 'ZADD', timeouts, 'XX', 0, '-' }, { 'HSET', side, 'a', 'b', 'c' },
  { 'PTTL', name }, { 'PEXPIRE', side, 'x' }, { 'HLEN', side })
if refused then
  return refused
end
if free then
  call('DECRBY', name, take)
else
  call('SET', name, text(of - taken - take))
end
put()
local left = call('PTTL', name)
if left > 0 then
  call('PEXPIRE', timeouts, left)
end
call('HSET', side, owner, take .. ' ' .. text(fence) .. ' ' .. ARGV[11])
if ours then
  call('HDEL', side, 'w')
end
keep(side, 2 * lease)
-- Permits that Redisson took back have left their claim's line in the hash beside.
local lines = call('HLEN', side)
if lines > taken + take + STALE and lines <= FIELDS then
  -- The permits are granted by now, also to a user that may not list the fields.
  local fields = try('HKEYS', side)
  for _, field in ipairs(type(fields) == 'table' and not fields.err and fields or {}) do
    local id = string.gsub(field, '%x%x', function(byte)
      return string.char(tonumber(byte, 16))
    end)
    if #field == 32 and not call('ZSCORE', timeouts, id) then
      call('HDEL', side, field)
    end
  end
end
return done(fence)
