-- Draws a fence, as the scripts that take locks do.
-- KEYS: the counter. ARGV: the number of the call. Reply: {the fence, that number}, or an error.
local fence = redis.pcall('INCR', KEYS[1])
if type(fence) ~= 'number' then
  fence.err = fence.err .. ' in the counter of fences'
  return fence
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if fence < now - 1000 then
  fence = now + 1
  redis.call('SET', KEYS[1], string.format('%.0f', fence))
elseif fence >= now + 315360000000000 then
  redis.call('DECR', KEYS[1])
  return redis.error_reply('FENCES ' .. KEYS[1])
end
return { fence, ARGV[1] }
