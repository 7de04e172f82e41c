-- Operations on different locks, each on its own: one that is refused changes nothing, and nothing of the others.
-- Written without functions, since the server would make them anew at each call. Each command that a script calls, and
-- each text that it makes, costs the server about as much as all that is around the script.
-- A lock is a string that expires: the token, the fence as a sum, and who holds it. It ends with " !" where somebody
-- listens for its release.
-- KEYS: the locks to release, those to renew, and those to acquire; then, where any is acquired, the counter of fences.
-- ARGV, in one of three forms:
--   only releases: their tokens
--   only one acquire, and nobody listens: the lease in ms, the token, and what is stored behind the first fence
--   all else: how many releases; how many renewals; how many of these, the last ones, are tracked; how many acquires;
--   the lease in ms, or '' where they differ; for each acquire 1 if its maker listens for releases, else 0, or '' where
--   nobody does; the tokens of all; for each acquire what is stored behind the first fence; and where leases differ,
--   those of the renewals and acquires
-- The server tells a client of changes of what it read, but for its own: a lock that is tracked is read once more.
-- A lock is released or renewed if it has the token; it is acquired if it is free, and adopted if it has the token.
-- Reply: the first fence of the call, or 0 without a grant, if all went well. Otherwise {that, place in KEYS, reply, ...}
-- with the replies of the others:
--   0                              a renewal or withdrawal found nothing of its own
--   {value}                        an acquire found its own lock and extended it
--   {remaining lease in ms, value} somebody else has the lock
--   the text of an error
local call, try, sub, find, byte = redis.call, redis.pcall, string.sub, string.find, string.byte
local back, renewed, tracked, taken, count, lease, listening, before = #KEYS, 0, 0, 0, nil, nil, '', 0
if #ARGV == 3 and back == 2 then
  back, taken, count, lease, before = 0, 1, '1', ARGV[1], 1
elseif #ARGV > back then
  back, renewed, tracked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  count, lease, listening = ARGV[4], ARGV[5], ARGV[6]
  taken, before = tonumber(count), 6
end
local base, odd, own, value = 0, nil, back + renewed, nil
local known = own > 1 and try('MGET', unpack(KEYS, 1, own))
if known and known.err then
  -- Perhaps this user has no right to one of them.
  known = nil
end
local removed = known and back > 1
for place = 1, removed and back or 0 do
  value = known[place]
  removed = removed and value and find(value, ARGV[before + place], 1, true) == 1
end
-- All at once, if all are there. Where that is refused, each gets an answer of its own.
removed = removed and try('DEL', unpack(KEYS, 1, back)) == back
for place = 1, own do
  local name, token, reply = KEYS[place], ARGV[before + place], nil
  if known then
    value = known[place]
  else
    value = try('GET', name)
  end
  if not value or type(value) == 'table' or find(value, token, 1, true) ~= 1 then
    -- Somebody may have put data in its place: the lock is gone.
    reply = value and value.err and not find(value.err, 'WRONGTYPE', 1, true) and value or 0
  elseif place > back then
    reply = try('PEXPIRE', name, lease ~= '' and lease or ARGV[before + own + 2 * taken + place - back])
    if place > own - tracked then
      try('PTTL', name)
    end
  else
    reply = removed and 1 or try('DEL', name)
    if byte(value, -1) == 33 then
      try('PUBLISH', name, '')
    end
  end
  if reply ~= 1 then
    odd = odd or { 0 }
    odd[#odd + 1] = place
    odd[#odd + 1] = reply ~= 0 and reply.err or 0
  end
end
local first, refused = nil, nil
-- Where somebody waits, the locks are looked at first, so that an attempt that finds one busy changes nothing.
local look = listening ~= ''
for n = 1, taken do
  local place, reply = own + n, nil
  local name, token = KEYS[place], ARGV[before + place]
  local term = lease ~= '' and lease or ARGV[before + own + 2 * taken + renewed + n]
  value = nil
  if look and not first then
    value = try('GETRANGE', name, 0, 511)
    value = value ~= '' and value or nil
  end
  if not value and not first and not refused then
    -- First what can be refused: a server that is full, read-only or short of replicas changes nothing.
    local counter = KEYS[#KEYS]
    local last = try('INCRBY', counter, count)
    if type(last) ~= 'number' then
      refused = last.err
    else
      -- The counter keeps up with the server's clock, so that it goes on upwards when it was lost with all data, or
      -- when a replica takes over that had not seen the last grants. A millisecond of slack spares most writes.
      local time = call('TIME')
      local now = time[1] * 1000000 + time[2]
      if last < now - 1000 then
        last = now + count
        call('SET', counter, string.format('%.0f', last))
      end
      -- Numbers have 53 bits here. What is years ahead of the clock is none of ours.
      if last < now + 315360000000000 then
        base = last - count + 1
        -- In two parts, which are integers everywhere: as one of its numbers it costs the server as much as a command.
        local tail = base % 100000000
        first = string.format(' %d%08d+', (base - tail) / 100000000, tail)
      else
        call('DECRBY', counter, count)
        refused = 'FENCES ' .. counter
      end
    end
    if refused and not look then
      look, value = true, try('GETRANGE', name, 0, 511)
      value = value ~= '' and value or nil
    end
  end
  if not value then
    if first then
      reply = try('SET', name, token .. first .. ARGV[before + own + taken + n], 'NX', 'PX', term)
      if reply then
        reply = reply.err
      else
        value = try('GETRANGE', name, 0, 511)
      end
    else
      reply = refused
    end
  end
  if value then
    if type(value) == 'table' then
      reply = value.err
    elseif sub(value, 1, #token) == token then
      reply = try('PEXPIRE', name, term) == 1 and { value } or 'ERR the lease was not extended'
    else
      -- Only what is a lock is written to.
      if
        sub(listening, n, n) == '1'
        and sub(value, -2) ~= ' !'
        and find(value, '^%x+ %d+%+%d+ ')
      then
        try('APPEND', name, ' !')
      end
      reply = { call('PTTL', name), value }
    end
  end
  if reply then
    odd = odd or { 0 }
    odd[#odd + 1] = place
    odd[#odd + 1] = reply
  end
end
if not odd then
  return base
end
odd[1] = base
return odd
