-- Takes a lock away from whoever holds it, or from one holder, and wakes who waits.
-- KEYS: the lock. ARGV: 1 where the key may be data of others; -; the number of the call; where only one holder is meant,
-- what its value begins with.
-- Reply: {1, 0 when nobody holds it, or 3 when it is not that holder, that number}; or an error.
local value = redis.pcall('GETRANGE', KEYS[1], 0, 511)
if value == '' and redis.call('PTTL', KEYS[1]) == -2 then
  return { 0, ARGV[3] }
end
if type(value) == 'table' or ARGV[1] == '1' and not string.find(value, '^%x+ %d+%+%d+ ') then
  return redis.error_reply('WRONGTYPE the key holds something that is no lock')
end
local meant = ARGV[4]
if meant and (string.sub(value, 1, #meant) ~= meant or meant == '' and value ~= '') then
  return { 3, ARGV[3] }
end
redis.call('DEL', KEYS[1])
-- Who is not told asks again by himself.
for waiter in string.gmatch(value, ' >(%x+):%d+') do
  redis.pcall('PUBLISH', KEYS[1] .. '#' .. waiter, '')
end
redis.pcall('PUBLISH', KEYS[1], '')
return { 1, ARGV[3] }
