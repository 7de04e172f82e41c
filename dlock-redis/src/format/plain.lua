-- Operations on different locks, each by itself: a refused one changes nothing, and nothing of the others.
-- Written without functions, since the server would make them anew at each call. Each command that a script calls, and
-- each text that it makes, costs the server about as much as everything around the script.
-- A lock is a string that expires: the token, the fence as a sum, and the line about the holder. It ends with "!" if a
-- client listens for its release, and with " ?!" if one of these waits to read: a release then leaves the field r of
-- shared locks, until when readers have their chance, see shares.lua. Before that stand the tokens that wait for the
-- lock in a queue: a release then leaves the queue, see line.lua.
-- KEYS: the locks to release, those to renew, and those to acquire; then, if any is acquired, the counter of fences.
-- ARGV: the number of the call; then, in one of three forms:
--   only releases: their tokens
--   only one acquire, and no listener: the lease in ms, the token, and what is stored behind the first fence
--   all else: how many releases; how many renewals; how many of these, the last ones, are tracked; how many acquires;
--   the lease in ms, or '' if they differ; for each acquire 1 if its maker listens for releases, else 0, or '' if
--   none does; how many fences all acquires draw from the counter, each at least one; the tokens of all; for each
--   acquire what is stored behind the first fence; and if leases differ, those of the renewals and acquires
-- The server reports to a client the changes of the keys that it read, but for its own: a tracked lock is read once
-- more.
-- A lock is released or renewed if it has the token; it is acquired if it is free, and adopted if it has the token.
-- Reply: if all went well the number of the call, behind ' <first fence of the call>+' if locks were acquired: a text
-- costs the server less than an array. Otherwise {result, that number}. The result is {the first fence, or 0 without a
-- grant; place in KEYS, reply, ...} with the replies of the other operations:
--   0                              a renewal or withdrawal found no lock of its token
--   2 or more                      a lock was released that clients listen for: one more than were
--                                  notified, and 2^30 more if one of them waits to read
--   {value}                        an acquire found its own lock and extended it
--   {remaining lease in ms, value} another client holds the lock
--   the text of an error
local call, try, sub, find, byte = redis.call, redis.pcall, string.sub, string.find, string.byte
local back, renewed, tracked, taken, count, lease, listening, before = #KEYS, 0, 0, 0, nil, nil, '', 1
if #ARGV == 4 and back == 2 then
  back, taken, count, lease, before = 0, 1, '1', ARGV[2], 2
elseif #ARGV > back + 1 then
  back, renewed, tracked = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
  taken, lease, listening, count = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
  before = 8
end
local base, odd, own, value, drawn = 0, nil, back + renewed, nil, nil
if own > 0 and taken > 0 then
  -- The counter first: a server that is full refuses it only to a script that has changed nothing yet, by whatever
  -- command.
  drawn = try('INCRBY', KEYS[#KEYS], count)
end
local known = own > 1 and try('MGET', unpack(KEYS, 1, own))
if known and known.err then
  -- This user may have no right to one of them: each is read by itself below.
  known = nil
end
local removed = known and back > 1
for place = 1, removed and back or 0 do
  value = known[place]
  removed = removed and value and find(value, ARGV[before + place], 1, true) == 1
end
-- All at once, if all are there. If that is refused, each gets an answer of its own.
removed = removed and try('DEL', unpack(KEYS, 1, back)) == back
for place = 1, own do
  local name, token, reply = KEYS[place], ARGV[before + place], nil
  if known then
    value = known[place]
  else
    value = try('GET', name)
  end
  if not value or type(value) == 'table' or find(value, token, 1, true) ~= 1 then
    -- Data of another program may stand in its place: the lock is gone.
    reply = value and value.err and not find(value.err, 'WRONGTYPE', 1, true) and value or 0
  elseif place > back then
    reply = try('PEXPIRE', name, lease ~= '' and lease or ARGV[before + own + 2 * taken + place - back])
    if place > own - tracked then
      try('PTTL', name)
    end
  else
    reply = removed and 1 or try('DEL', name)
    if byte(value, -1) == 33 then
      local line, reads = find(value, ' >', 40, true), sub(value, -3) == ' ?!'
      if (line or reads) and reply == 1 then
        local time = call('TIME')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        local left, last, head, term = { 'n', 0, 'e', 0, 'l', 1 }, 0, nil, 100
        if reads then
          left[7], left[8] = 'r', string.format('%.0f', now + 100)
        end
        for waiter, alive in string.gmatch(line and value or '', ' >(%x+):(%d+)') do
          if tonumber(alive) > now then
            last, head, term = last + 1, head or waiter, 2000
            left[#left + 1], left[#left + 2] = 'q' .. last, waiter .. ' ' .. alive
            left[#left + 1], left[#left + 2] = '?' .. waiter, last
          end
        end
        if head then
          left[#left + 1], left[#left + 2] = reads and 'F' or 'f', last
        end
        if (head or reads) and type(try('HSET', name, unpack(left))) == 'number' then
          try('PEXPIRE', name, term)
        end
        if head then
          try('PUBLISH', name .. '#' .. head, '')
        end
      end
      local notified = try('PUBLISH', name, '')
      local told = math.max(2, tonumber(notified) and notified + 1 or 0)
      reply = reply == 1 and (reads and told + 1073741824 or told) or reply
    end
  end
  if reply ~= 1 then
    odd = odd or { 0 }
    odd[#odd + 1] = place
    odd[#odd + 1] = type(reply) == 'table' and reply.err or reply
  end
end
local first, refused = nil, nil
-- If a claim waits, the locks are looked at first, so that attempts that find them busy change nothing.
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
    -- The counter first, as it can be refused: a server that is full, read-only or short of replicas then changes
    -- nothing.
    local counter = KEYS[#KEYS]
    local last = drawn or try('INCRBY', counter, count)
    if type(last) ~= 'number' then
      refused = last.err .. ' in the counter of fences'
    else
      -- The counter keeps up with the server's clock, so that it goes on upwards if it was lost with all data, or if a
      -- replica takes over that had not seen the last grants. A millisecond of slack spares most writes.
      local time = call('TIME')
      local now = time[1] * 1000000 + time[2]
      if last < now - 1000 then
        last = now + count
        call('SET', counter, string.format('%.0f', last))
      end
      -- Numbers have 53 bits here. A counter that is years ahead of the clock holds no fence.
      if last < now + 315360000000000 then
        base = last - count + 1
        -- In two parts, which are integers everywhere: formatting it as one number costs the server as much as a
        -- command.
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
      if n < taken and not first and not refused then
        -- The counter before the first change, as above: the next lock may be free.
        drawn = drawn or try('INCRBY', KEYS[#KEYS], count)
      end
      reply = try('PEXPIRE', name, term) == 1 and { value } or 'ERR the lease was not extended'
    else
      -- Only a lock is written to, and never data.
      if
        sub(listening, n, n) == '1'
        and byte(value, -1) ~= 33
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
if odd then
  odd[1] = base
  return { odd, ARGV[1] }
end
return (first or '') .. ARGV[1]
