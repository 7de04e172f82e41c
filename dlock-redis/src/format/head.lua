-- What the scripts of several holders, of waiters in line, and of fences begin with.
-- ARGV: the number of the call first.
local call, try = redis.call, redis.pcall
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number)
  return string.format('%.0f', number)
end
local function done(result)
  return { result, ARGV[1] }
end
-- Draws a fence from a counter, which keeps up with the server's clock. Where it is refused, nothing, and the error.
local function draw(counter)
  local fence = try('INCR', counter)
  if type(fence) ~= 'number' then
    fence.err = fence.err .. ' in the counter of fences'
    return nil, fence
  end
  local micros = time[1] * 1000000 + time[2]
  if fence < micros - 1000 then
    fence = micros + 1
    call('SET', counter, text(fence))
  elseif fence >= micros + 315360000000000 then
    call('DECR', counter)
    return nil, redis.error_reply('FENCES ' .. counter)
  end
  return fence
end

