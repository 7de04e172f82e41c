-- Several locks in one step: all of them or none.
-- KEYS: the locks, then the counter of fences. ARGV: 1 if the maker listens; then for each lock three values: token, lease
-- in ms, what is added to the first fence and who it is.
-- Replies: the first fence, where all were free; {the first fence or 0, {value} of an adopted lock or 1, ...} where some
-- were adopted; or {place of the first lock that somebody else has, remaining lease in ms, value}, where nothing was
-- changed; or an error, where nothing was taken.
local call, try, sub, format = redis.call, redis.pcall, string.sub, string.format
local count, adopted, free = #KEYS - 1, {}, #KEYS - 1
if call('EXISTS', unpack(KEYS, 1, count)) > 0 then
  for n = 1, count do
    local value, token = try('GETRANGE', KEYS[n], 0, 511), ARGV[3 * n - 1]
    if type(value) == 'table' then
      return value
    elseif value ~= '' and sub(value, 1, #token) == token then
      adopted[n], free = value, free - 1
    elseif value ~= '' then
      if ARGV[1] == '1' and sub(value, -2) ~= ' !' and string.find(value, '^%x+ %d+%+%d+ ') then
        try('APPEND', KEYS[n], ' !')
      end
      return { n, call('PTTL', KEYS[n]), value }
    end
  end
end
local base, first = 0, nil
if free > 0 then
  -- As in plain.lua: first what can be refused, and never below the server's clock.
  local last = try('GET', KEYS[#KEYS])
  if type(last) == 'table' then
    return last
  end
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  last = tonumber(last or 0)
  if not (last and last < now + 315360000000000) then
    return redis.error_reply('FENCES ' .. KEYS[#KEYS])
  end
  base = now > last and now or last + 1
  local set = try('SET', KEYS[#KEYS], format('%.0f', base + count - 1))
  if set.err then
    return set
  end
  first = format(' %.0f+', base)
end
for n = 1, count do
  local done
  if adopted[n] then
    done = try('PEXPIRE', KEYS[n], ARGV[3 * n])
    if done == 1 then
      done = { ok = 'OK' }
    end
  else
    done = try('SET', KEYS[n], ARGV[3 * n - 1] .. first .. ARGV[3 * n + 1], 'NX', 'PX', ARGV[3 * n])
  end
  if type(done) ~= 'table' or done.err then
    -- What this call has taken so far is given back.
    for taken = 1, n - 1 do
      if not adopted[taken] then
        try('DEL', KEYS[taken])
      end
    end
    return type(done) == 'table' and done or redis.error_reply('ERR a lease was not set')
  end
end
if free == count then
  return base
end
local replies = { 0, base }
for n = 1, count do
  replies[n + 2] = adopted[n] and { adopted[n] } or 1
end
return replies
