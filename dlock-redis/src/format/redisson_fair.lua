-- One step on a lock whose waiters are served in the order in which they came, as Redisson's RFairLock has it.
-- The lock is the hash of an RLock. A list has the owners that wait, and a sorted set until when each keeps its place:
-- until that of the waiter before it, and TURN for its own turn. When a waiter gets the lock, its TURN is taken from
-- the times of all others; a waiter of dlock adds the time since it asked last. So no waiter that asks loses its place
-- to clients of Redisson, which go by their own clocks, and a waiter that died does at its turn, once TURN has passed.
-- In the hash beside: ?<owner>, until when a waiter of dlock is alive, by which dlock decides.
-- KEYS: the lock; the hash beside; the list; the sorted set; for an acquire the counter of fences.
-- ARGV: the number of the call; the operation; the channel of the lock, before the owner's for a waiter; 1 on a
-- cluster; the owner; the lease in ms; -; -; 1 if it waits; -; the line about the holder.
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result:
--   acquire   the fence; {fence} of a lock that the owner has already; {ms to wait or -1, owner, value} if it is
--             taken, or it is the turn of another waiter
--   renew     1, or 0 if the owner does not have the lock
--   withdraw  1, or 0 if the owner did not have the lock
local TURN = 10000
local queue, timeouts, lease = KEYS[3], KEYS[4], tonumber(ARGV[6])

local kind = call('TYPE', name)
kind = kind.ok or kind
if kind ~= 'none' and kind ~= 'hash' then
  if operation == 'renew' or operation == 'withdraw' then
    kind = 'none'
  else
    return redis.error_reply('WRONGTYPE the key holds something that is no lock')
  end
end
local held = kind == 'hash'
local own = held and call('HGET', name, owner)

-- Takes the TURN of each waiter that is gone from all that are left, or from those behind one.
local function shorten(gone, behind)
  local from = not behind
  for _, waiter in ipairs(gone > 0 and call('LRANGE', queue, 0, -1) or {}) do
    if from then
      call('ZINCRBY', timeouts, -TURN * gone, waiter)
    end
    from = from or waiter == behind
  end
end

-- Returns the first waiter that is alive. Those before it lose their places.
local function first()
  local gone, head = 0, nil
  while true do
    head = call('LINDEX', queue, 0)
    if not head or head == owner and operation == 'acquire' then
      break
    end
    local alive = call('HGET', side, '?' .. head)
    local ours = alive or string.find(head, ':' .. string.rep('%x', 32) .. '$')
    local score = call('ZSCORE', timeouts, head)
    if ours and tonumber(alive or 0) > now or not ours and not (score and tonumber(score) <= now) then
      break
    end
    if operation == 'acquire' and not held then
      draw_first(KEYS[5])
    end
    call('LPOP', queue)
    call('ZREM', timeouts, head)
    call('HDEL', side, '?' .. head)
    gone = gone + (ours and 1 or 0)
  end
  shorten(gone)
  return head
end

if operation == 'renew' then
  return done(own and call('PEXPIRE', name, lease) or 0)
end

if operation == 'withdraw' then
  local waited = call('HDEL', side, '?' .. owner) == 1 or call('ZSCORE', timeouts, owner)
  if waited then
    local was_first = call('LINDEX', queue, 0) == owner
    shorten(1, owner)
    call('LREM', queue, 0, owner)
    call('ZREM', timeouts, owner)
    waited = was_first and not held
  end
  if own then
    call('HDEL', name, owner)
  end
  if own or waited then
    local head = first()
    notify(head and channel .. ':' .. head or channel, '0')
  end
  return done(own and 1 or 0)
end

if own then
  -- The reply to an earlier attempt was lost.
  local known = tonumber(string.match(own, '^(%d+) '))
  if not known then
    return redis.error_reply('ERR somebody removed the fence from the lock; do not edit locks')
  end
  call('PEXPIRE', name, lease)
  return done({ known })
end

-- As in redisson.lua: one owner, or the mode of a read-write lock.
local other = {}
if held then
  other = call('HLEN', name) == 1 and call('HGETALL', name) or { 'mode', call('HGET', name, 'mode') or '' }
  local is_mode = other[1] == 'mode' and (other[2] == 'read' or other[2] == 'write')
  if not is_mode and not string.find(other[2], '^%d+$') and not string.find(other[2], '^%d+ ') then
    return redis.error_reply('WRONGTYPE the key holds something that is no lock')
  end
end
local head = first()
if held or head and head ~= owner then
  if ARGV[9] == '1' then
    local score, alive = call('ZSCORE', timeouts, owner), call('HGET', side, '?' .. owner)
    if not score then
      local last = call('LINDEX', queue, -1)
      local before = last and tonumber(call('ZSCORE', timeouts, last) or nil) or now
      call('ZADD', timeouts, text(before + TURN), owner)
      call('LREM', queue, 0, owner)
      call('RPUSH', queue, owner)
    elseif alive and tonumber(alive) < now + ALIVE then
      call('ZINCRBY', timeouts, text(now + ALIVE - tonumber(alive)), owner)
    end
    call('HSET', side, '?' .. owner, text(now + ALIVE))
    keep(side, ALIVE)
  end
  -- Only the first waiter has a reason to ask when the lease ends.
  local left = held and (not head or head == owner) and call('PTTL', name) or -1
  return done({ left, other[1] or '', other[2] or '' })
end

-- The counter first, as it can be refused: a server that is full, read-only or short of replicas then grants nothing.
draw_first(KEYS[5])
if refused then
  return refused
end
if head then
  call('LPOP', queue)
  call('ZREM', timeouts, owner)
  call('HDEL', side, '?' .. owner)
  shorten(1)
end
call('HSET', name, owner, text(fence) .. ' ' .. ARGV[11])
local kept = try('PEXPIRE', name, ARGV[6])
if type(kept) == 'table' then
  -- Without an expiry it would stay for ever.
  try('HDEL', name, owner)
  return kept
end
return done(fence)
