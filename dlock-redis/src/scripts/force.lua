-- Takes a lock away from whoever holds it, and wakes who waits.
-- KEYS: the lock. ARGV: its channel.
-- Reply: 1, or 0 when nobody holds it.
local held = redis.call('HGETALL', KEYS[1])
if #held == 0 then
  return 0
end
-- One owner, the UUID of a client with the mark of a claim or a thread: other data may lie under the name.
if #held ~= 2 or not string.find(held[1], '^%x+%-%x+%-%x+%-%x+%-%x+:%w+$') then
  return redis.error_reply('WRONGTYPE the key holds a hash that is no lock')
end
redis.call('DEL', KEYS[1])
-- Who is not told asks again by himself.
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
