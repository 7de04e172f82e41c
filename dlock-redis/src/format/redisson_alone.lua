-- Takes a lock without its counter, as plain_alone.lua does.
-- KEYS: the lock. ARGV: owner field; lease in ms; the fence, or 0; the line about the holder; -; the number of the
-- call.
-- Reply: {result, that number}, or an error. The result is {value} of a lock that the owner has now; {remaining lease
-- in ms, owner field, value} if another client holds it; 0 if there is no lock that could get the fence.
local try, name, owner, fence = redis.pcall, KEYS[1], ARGV[1], ARGV[3]
local left = try('PTTL', name)
if type(left) == 'table' then
  return left
end
local value = left ~= -2 and try('HGET', name, owner)
if type(value) == 'table' then
  return value
elseif value then
  if fence ~= '0' then
    value = string.gsub(value, '^0 ', fence .. ' ')
  end
elseif left ~= -2 then
  -- As in redisson.lua.
  local held = redis.call('HLEN', name) == 1 and redis.call('HGETALL', name)
  held = held or { 'mode', redis.call('HGET', name, 'mode') or '' }
  return { { left, held[1], held[2] }, ARGV[6] }
elseif fence ~= '0' then
  return { 0, ARGV[6] }
else
  value = '0 ' .. ARGV[4]
end
local set = try('HSET', name, owner, value)
if type(set) == 'table' then
  return set
elseif try('PEXPIRE', name, ARGV[2]) ~= 1 then
  if left == -2 then
    try('HDEL', name, owner)
  end
  return redis.error_reply('ERR the lease was not set')
end
return { { value }, ARGV[6] }
