-- Releases a lock by force, whoever holds it or from one holder only, and wakes its waiters. If the lock is free, the
-- first waiters in its queue that are Redisson's lose their places: a waiter that is alive takes a new one.
-- KEYS: the lock. ARGV: its channel; 1 if the key may be data of other programs; 1 on a cluster; the number of the
-- call; the list and the sorted set of the queue, and the hash beside; if only one holder is meant, its field, and if
-- only one first waiter is meant, '?' and its owner.
-- Reply: {1, 0 if the lock was free, 2 of a read-write lock, which stays, or 3 if another client holds it, that
-- number}; or an error.
local queue, timeouts, side, meant = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local count = redis.pcall('HLEN', KEYS[1])
if count == 0 then
  local first, _, places = waiters_of_others(queue, timeouts, side, true)
  if not first then
    return { 0, ARGV[4] }
  elseif meant and meant ~= '?' .. first then
    return { 3, ARGV[4] }
  end
  for _ = 1, places do
    local waiter = redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, waiter)
    redis.pcall('HDEL', side, '?' .. waiter)
  end
else
  -- One owner with the count of its entries, or with a fence and the line about it: other data may lie under the name.
  local held = count == 1 and redis.call('HGETALL', KEYS[1]) or {}
  local is_lock = held[2] and (string.find(held[2], '^%d+$') or string.find(held[2], '^%d+ '))
  local mode = not is_lock and redis.pcall('HGET', KEYS[1], 'mode')
  if mode == 'read' or mode == 'write' then
    return { 2, ARGV[4] }
  elseif not is_lock and (count ~= 1 or ARGV[2] == '1') then
    return redis.error_reply('WRONGTYPE the key holds something that is no lock')
  elseif meant and held[1] ~= meant then
    return { 3, ARGV[4] }
  end
  redis.call('DEL', KEYS[1])
end
-- A waiter that is not notified asks again from time to time.
local next = redis.pcall('LINDEX', queue, 0)
local channel = type(next) == 'string' and ARGV[1] .. ':' .. next or ARGV[1]
if ARGV[3] == '1' then
  redis.pcall('SPUBLISH', channel, '0')
end
redis.pcall('PUBLISH', channel, '0')
return { 1, ARGV[4] }
