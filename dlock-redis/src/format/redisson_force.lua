-- Takes a lock away from whoever holds it, or from one holder, and wakes who waits.
-- KEYS: the lock. ARGV: its channel; 1 where the key may be data of others; 1 on a cluster; the number of the call; the
-- list of those who wait in line, in the slot of the lock, which is no key of the call: a user without a right to it
-- takes locks away all the same; where only one holder is meant, its field.
-- Reply: {1, 0 when nobody holds it, 2 of a read-write lock, which stays, or 3 when it is not that holder, that number};
-- or an error.
local count = redis.pcall('HLEN', KEYS[1])
if count == 0 then
  return { 0, ARGV[4] }
end
-- One owner with the count of its entries, or with a fence and who it is: other data may lie under the name.
local held = count == 1 and redis.call('HGETALL', KEYS[1]) or {}
local is_lock = held[2] and (string.find(held[2], '^%d+$') or string.find(held[2], '^%d+ '))
local mode = not is_lock and redis.pcall('HGET', KEYS[1], 'mode')
if mode == 'read' or mode == 'write' then
  return { 2, ARGV[4] }
elseif not is_lock and (count ~= 1 or ARGV[2] == '1') then
  return redis.error_reply('WRONGTYPE the key holds something that is no lock')
end
if ARGV[6] and held[1] ~= ARGV[6] then
  return { 3, ARGV[4] }
end
redis.call('DEL', KEYS[1])
-- Who is not told asks again by himself.
local first = redis.pcall('LINDEX', ARGV[5], 0)
local channel = type(first) == 'string' and ARGV[1] .. ':' .. first or ARGV[1]
if ARGV[3] == '1' then
  redis.pcall('SPUBLISH', channel, '0')
end
redis.pcall('PUBLISH', channel, '0')
return { 1, ARGV[4] }
