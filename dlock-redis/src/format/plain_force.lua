-- Releases a lock by force, whoever holds it or from one holder only, and wakes its waiters.
-- KEYS: the lock. ARGV: 1 if the key may be data of other programs; -; the number of the call; if only one holder is
-- meant, what its value begins with.
-- Reply: {1, 0 if the lock was free, or 3 if another client holds it, that number}; or an error.
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
-- A waiter that is not notified asks again from time to time.
for waiter in string.gmatch(value, ' >(%x+):%d+') do
  redis.pcall('PUBLISH', KEYS[1] .. '#' .. waiter, '')
end
redis.pcall('PUBLISH', KEYS[1], '')
return { 1, ARGV[3] }
