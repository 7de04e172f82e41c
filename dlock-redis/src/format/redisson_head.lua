-- The second head of the scripts of Redisson's other locks, behind head.lua.
-- Beside the keys of Redisson there is a hash of dlock, which Redisson never reads: w, the owner of a claim that waits
-- and keeps newcomers of dlock out, since when, and until when it is alive. Times are in ms of the server's clock.
local PREFERENCE, ALIVE = 10000, 2000
-- The most holders of a lock, and the most fields of its hash: a larger one is no lock, and never read as a whole.
local HOLDERS, FIELDS = 10000, 10016
local name, side, operation, channel, owner = KEYS[1], KEYS[2], ARGV[2], ARGV[3], ARGV[5]
-- Redisson subscribes to sharded channels if a cluster has them, unless it is configured not to.
local function notify(where, message)
  if ARGV[4] == '1' then
    try('SPUBLISH', where, message)
  end
  try('PUBLISH', where, message)
end
-- Begins the changes of a step that renews. A server that is full refuses commands that may need memory, unless the
-- script has changed something before: this is a command that needs none, whatever comes of it.
local function begin_in_any_case()
  call('HDEL', side, '-')
end
local function keep(key, least)
  if call('PTTL', key) < least then
    call('PEXPIRE', key, text(least))
  end
end
-- Returns until when newcomers are kept out, 0 if they are not, and whether it is this claim that keeps them out.
local function kept_out(waits)
  if not waits then
    return 0, false
  end
  local waiter, since, alive = string.match(waits, '^(%S+) (%d+) (%d+)$')
  if waiter == owner then
    return 0, true
  end
  return waiter and math.min(tonumber(alive), since + PREFERENCE) or 0, false
end
-- Makes this claim, which waits, keep newcomers out, unless another one does, or lets them pass after it did.
local function prefer(waits)
  local waiter, since, alive = string.match(waits or '', '^(%S+) (%d+) (%d+)$')
  if not waiter or tonumber(alive) <= now or since + 2 * PREFERENCE <= now then
    waiter, since = owner, now
  end
  if waiter == owner then
    call('HSET', side, 'w', owner .. ' ' .. text(since) .. ' ' .. text(now + ALIVE))
    keep(side, ALIVE)
  end
end
