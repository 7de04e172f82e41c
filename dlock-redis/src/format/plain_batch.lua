-- Several locks in one step: all of them or none.
-- KEYS: the locks, then the counter of fences. ARGV: the number of the call; 1 if the maker listens; the lease in ms,
-- or '' if the leases differ; then for each lock its token, and what follows the first fence in its value; then the
-- leases, if they differ.
-- Reply: {result, the number of the call}; or an error, and then nothing was taken. The result is the first fence, if
-- all were free; {the first fence or 0, {value} of an adopted lock or 1, ...} if some were adopted; or {place of the
-- first lock that another client holds, remaining lease in ms, value}, and then nothing was changed.
local call, try, sub, format = redis.call, redis.pcall, string.sub, string.format
local count, adopted, free, lease = #KEYS - 1, {}, #KEYS - 1, ARGV[3]
if call('EXISTS', unpack(KEYS, 1, count)) > 0 then
  for n = 1, count do
    local value, token = try('GETRANGE', KEYS[n], 0, 511), ARGV[2 * n + 2]
    if type(value) == 'table' then
      return value
    elseif value ~= '' and sub(value, 1, #token) == token then
      adopted[n], free = value, free - 1
    elseif value ~= '' then
      if ARGV[2] == '1' and sub(value, -1) ~= '!' and string.find(value, '^%x+ %d+%+%d+ ') then
        try('APPEND', KEYS[n], ' !')
      end
      return { { n, call('PTTL', KEYS[n]), value }, ARGV[1] }
    end
  end
end
local base, first = 0, nil
if free > 0 then
  -- As in plain.lua: the counter first, as it can be refused, and never below the server's clock.
  local counter = KEYS[#KEYS]
  local last = try('INCRBY', counter, count)
  if type(last) ~= 'number' then
    last.err = last.err .. ' in the counter of fences'
    return last
  end
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if last < now - 1000 then
    last = now + count
    call('SET', counter, format('%.0f', last))
  end
  if last >= now + 315360000000000 then
    call('DECRBY', counter, count)
    return redis.error_reply('FENCES ' .. counter)
  end
  base = last - count + 1
  local tail = base % 100000000
  first = format(' %d%08d+', (base - tail) / 100000000, tail)
end
for n = 1, count do
  local done
  local term = lease ~= '' and lease or ARGV[2 * count + 3 + n]
  if adopted[n] then
    done = try('PEXPIRE', KEYS[n], term)
    if done == 1 then
      done = { ok = 'OK' }
    end
  else
    done = try('SET', KEYS[n], ARGV[2 * n + 2] .. first .. ARGV[2 * n + 3], 'NX', 'PX', term)
  end
  if type(done) ~= 'table' or done.err then
    -- The locks that this call has taken so far are released.
    for taken = 1, n - 1 do
      if not adopted[taken] then
        try('DEL', KEYS[taken])
      end
    end
    if done == false then
      -- An empty text, which looks like a free lock.
      done = redis.error_reply('WRONGTYPE the key holds something that is no lock')
    end
    return type(done) == 'table' and done or redis.error_reply('ERR a lease was not set')
  end
end
if free == count then
  return { base, ARGV[1] }
end
local replies = { 0, base }
for n = 1, count do
  replies[n + 2] = adopted[n] and { adopted[n] } or 1
end
return { replies, ARGV[1] }
