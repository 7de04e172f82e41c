-- Takes a lock without its counter, while a slot is being moved and its keys may lie on two servers: first without a
-- fence, which is drawn once the lock is held, so that fences are in the order of the grants, and then with it.
-- KEYS: the lock. ARGV: token; lease in ms; the fence, or 0; the line about the holder; 1 if the maker listens for the
-- release; the number of the call.
-- Reply: {result, that number}, or an error, and then nothing was changed. The result is {value} of a lock that the
-- token has now; {remaining lease in ms, value} if another client holds it; 0 if there is no lock that could get the
-- fence.
local name, token, fence = KEYS[1], ARGV[1], ARGV[3]
local value = redis.pcall('GETRANGE', name, 0, 511)
if type(value) == 'table' then
  return value
elseif value == '' and redis.call('PTTL', name) == -2 then
  if fence ~= '0' then
    return { 0, ARGV[6] }
  end
  value = token .. ' 0+0 ' .. ARGV[4]
elseif string.sub(value, 1, #token) ~= token then
  -- Only a lock is written to, and never data.
  if ARGV[5] == '1' and string.sub(value, -1) ~= '!' and string.find(value, '^%x+ %d+%+%d+ ') then
    redis.pcall('APPEND', name, ' !')
  end
  return { { redis.call('PTTL', name), value }, ARGV[6] }
elseif fence ~= '0' then
  value = string.gsub(value, '^(%x+) 0%+0 ', '%1 ' .. fence .. '+0 ')
end
local set = redis.pcall('SET', name, value, 'PX', ARGV[2])
return set.err and set or { { value }, ARGV[6] }
