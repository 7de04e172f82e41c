-- The head of the scripts of shared locks, of queues, and of fences.
-- ARGV: first the number of the call.
local call, try = redis.call, redis.pcall
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number)
  return string.format('%.0f', number)
end
local function done(result)
  return { result, ARGV[1] }
end
-- Draws a fence from a counter, which keeps up with the server's clock. Returns nil and the error if it is refused.
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
-- The fence of the grant of this step, or the reason why there is none. A server that is full refuses the counter only
-- to a script that has changed nothing yet, by whatever command: so a step that may grant draws the fence before its
-- first change. A fence that is not used is left out.
local fence, refused
local function draw_first(counter)
  if not fence and not refused then
    fence, refused = draw(counter)
  end
end
-- Tries the commands of a step by arguments that change nothing. Returns the error of a command that this user may not
-- use: a refusal in the middle of the step would leave the rest undone.
local function denied(...)
  for _, tried in ipairs({ ... }) do
    local reply = try(unpack(tried))
    local why = type(reply) == 'table' and reply.err or ''
    if string.find(why, 'ermission') or string.find(why, 'to run the') or string.find(why, "the script can't") then
      return reply
    end
  end
end

