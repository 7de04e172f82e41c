-- Several locks in one step: all of them or none.
-- KEYS: the counter of fences, if ARGV[1] is 1; then the locks, if it is 0 each with its own counter after it.
-- ARGV: 1 or 0; the number of the call; then for each lock three values: owner field, lease in ms, the line about the
-- holder.
-- Reply: {result, that number}; or an error, and then nothing was taken. The result is {0, fence | {value} of an
-- adopted lock, ...}, or {place of the first lock that another client holds, remaining lease in ms, owner field,
-- value}, and then nothing was changed.
local call, try, format = redis.call, redis.pcall, string.format
local first, step = 1, 2
if ARGV[1] == '1' then
  first, step = 2, 1
end
local count, free, replies = (#ARGV - 2) / 3, 0, { 0 }
for n = 1, count do
  local name = KEYS[first + (n - 1) * step]
  local left = try('PTTL', name)
  if type(left) == 'table' then
    return left
  elseif left == -2 then
    free = free + 1
  else
    local value = try('HGET', name, ARGV[3 * n])
    if type(value) == 'string' then
      replies[n + 1] = { value }
    elseif value then
      return value
    else
      -- As in redisson.lua.
      local held = try('HLEN', name)
      if type(held) == 'table' then
        return held
      end
      held = held == 1 and call('HGETALL', name) or { 'mode', call('HGET', name, 'mode') or '' }
      return { { n, left, held[1], held[2] }, ARGV[2] }
    end
  end
end
local last
if free > 0 and step == 1 then
  -- The counter first, as it can be refused: a server that is full, read-only or short of replicas then changes
  -- nothing.
  last = try('INCRBY', KEYS[1], free)
  if type(last) ~= 'number' then
    last.err = last.err .. ' in the counter of fences'
    return last
  end
  -- As in redisson.lua, the counter keeps up with the server's clock.
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if last < now - 1000 then
    last = now + free
    call('SET', KEYS[1], format('%.0f', last))
  end
  if last > now + 315360000000000 then
    call('DECRBY', KEYS[1], free)
    return redis.error_reply('FENCES ' .. KEYS[1])
  end
  last = last - free
end
-- The free locks first: a server that is full refuses a fence only to a script that has changed nothing yet.
local order = {}
for _, adopts in ipairs({ false, true }) do
  for n = 1, count do
    if (replies[n + 1] ~= nil) == adopts then
      order[#order + 1] = n
    end
  end
end
for _, n in ipairs(order) do
  local place = first + (n - 1) * step
  local name, owner, lease = KEYS[place], ARGV[3 * n], ARGV[3 * n + 1]
  local done
  if replies[n + 1] then
    done = try('PEXPIRE', name, lease)
  else
    local fence
    if last then
      last = last + 1
      fence = last
    else
      fence = try('INCR', KEYS[place + 1])
      if type(fence) == 'number' then
        local time = call('TIME')
        local now = time[1] * 1000000 + time[2]
        if fence < now - 1000 then
          fence = now + 1
          call('SET', KEYS[place + 1], format('%.0f', fence))
        end
        if fence > now + 315360000000000 then
          call('DECR', KEYS[place + 1])
          fence = redis.error_reply('FENCES ' .. KEYS[place + 1])
        end
      end
    end
    if type(fence) ~= 'number' then
      done = fence
    else
      done = try('HSET', name, owner, format('%.0f %s', fence, ARGV[3 * n + 2]))
      if done == 1 then
        replies[n + 1] = fence
        done = try('PEXPIRE', name, lease)
      end
    end
  end
  if done ~= 1 then
    -- The locks that this call has taken so far are released.
    for taken = 1, count do
      if type(replies[taken + 1]) == 'number' then
        try('HDEL', KEYS[first + (taken - 1) * step], ARGV[3 * taken])
      end
    end
    return type(done) == 'table' and done or redis.error_reply('ERR a lease was not set')
  end
end
return { replies, ARGV[2] }
