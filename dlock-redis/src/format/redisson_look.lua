-- Looks at the holder of a lock, without reading the whole of a hash that may be data of other programs.
-- KEYS: the lock. ARGV: the number of the call; the list and the sorted set of the queue, and the hash beside.
-- Reply: {{remaining lease in ms, how many fields, owner field or 'mode', value}, that number}; if the lock is free,
-- and it is the turn of a waiter of Redisson, {{ms for which it keeps its place or -1, 0, its owner, ''}, that number};
-- or an error.
local count = redis.call('HLEN', KEYS[1])
if count == 0 then
  local first, left = waiters_of_others(ARGV[2], ARGV[3], ARGV[4])
  return { first and { left, 0, first, '' } or { -2, 0, '', '' }, ARGV[1] }
end
local held = count == 1 and redis.call('HGETALL', KEYS[1]) or { 'mode', redis.call('HGET', KEYS[1], 'mode') or '' }
return { { redis.call('PTTL', KEYS[1]), count, held[1], held[2] }, ARGV[1] }
