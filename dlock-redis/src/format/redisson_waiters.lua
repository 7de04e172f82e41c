-- The queue of a free lock, for the scripts that look and that release by force: its waiters that are Redisson's. The
-- list, the sorted set and the hash beside are in the slot of the lock, and no keys of the call: a user without a right
-- to them looks and releases by force all the same.
-- Returns the first waiter of Redisson before the first of dlock's that is alive, if it is its turn; for how many ms it
-- keeps its place, -1 without an end; and if all are asked for, how many they are. See redisson_fair.lua for the
-- waiters that are passed over.
local function waiters_of_others(queue, timeouts, side, all)
  local time, most = redis.call('TIME'), 1000
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local count, first, left = 0, nil, nil
  while count < most and (all or not first) do
    local waiter = redis.pcall('LRANGE', queue, count, count)[1]
    if not waiter then
      break
    end
    local alive, score = redis.pcall('HGET', side, '?' .. waiter), redis.pcall('ZSCORE', timeouts, waiter)
    alive = type(alive) == 'string' and tonumber(alive)
    score = type(score) == 'string' and tonumber(score)
    local ours = alive or string.find(waiter, ':' .. string.rep('%x', 32) .. '$')
    if ours and (alive or 0) > now then
      break
    elseif not ours and not first and not (score and score <= now) then
      first, left = waiter, score and score - now < 1e14 and math.max(math.floor(score - now), 1) or -1
    end
    count = count + 1
  end
  return first, left, count
end
