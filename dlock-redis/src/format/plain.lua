-- Operations on different locks, each on its own: one that is refused changes nothing, and nothing of the others.
-- Written without functions, since the server would make them anew at each call.
-- A lock is a string that expires: the token, the fence as a sum, and who holds it. It ends with " !" where somebody
-- listens for its release.
-- KEYS: the lock of each operation; then the counter of fences, where there are acquires.
-- ARGV: -; how many acquires; then for each operation
--   w, token                       give the lock back, and wake who listens, if the token has it
--   r, token, lease in ms          extend the lease, if the token has the lock
--   a, token, lease in ms, what is added to the first fence of the call and who it is
--                                  take the lock, or adopt it when the token has it already
--   l, the same                    the same for one who listens for the release
-- Reply: the first fence of the call, or 0 without a grant, if all went well. Otherwise {that, place in KEYS, reply, ...}
-- with the replies of the others:
--   0                              a renewal or withdrawal found nothing of its own
--   {value}                        an acquire found its own lock and extended it
--   {remaining lease in ms, value} somebody else has the lock
--   the text of an error
local call, try, sub = redis.call, redis.pcall, string.sub
local base, first, odd, at, place = 0, nil, nil, 3, 1
while ARGV[at] do
  local what, name, token, reply = ARGV[at], KEYS[place], ARGV[at + 1], nil
  if what == 'w' or what == 'r' then
    local value = try('GET', name)
    if not value or type(value) == 'table' or sub(value, 1, #token) ~= token then
      -- Somebody may have put data in its place: the lock is gone.
      reply = value and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) and value or 0
    elseif what == 'r' then
      reply = try('PEXPIRE', name, ARGV[at + 2])
    else
      reply = try('DEL', name)
      if sub(value, -2) == ' !' then
        try('PUBLISH', name, '')
      end
    end
    if reply == 1 then
      reply = nil
    elseif reply ~= 0 then
      reply = reply.err
    end
    at = at + (what == 'w' and 2 or 3)
  else
    local value
    if not first then
      -- Who finds the first lock taken changes nothing.
      value = try('GETRANGE', name, 0, 511)
      if value == '' then
        value = nil
        -- First what can be refused: a server that is full, read-only or short of replicas changes nothing.
        local counter, count = KEYS[#KEYS], ARGV[2]
        local last = try('INCRBY', counter, count)
        if type(last) ~= 'number' then
          reply = last.err
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
            first = string.format(' %.0f+', base)
          else
            call('DECRBY', counter, count)
            reply = 'FENCES ' .. counter
          end
        end
      end
    end
    if first and not value then
      reply = try('SET', name, token .. first .. ARGV[at + 3], 'NX', 'PX', ARGV[at + 2])
      if reply then
        reply = reply.err
      else
        value = try('GETRANGE', name, 0, 511)
      end
    end
    if value then
      if type(value) == 'table' then
        reply = value.err
      elseif sub(value, 1, #token) == token then
        reply = try('PEXPIRE', name, ARGV[at + 2]) == 1 and { value } or 'ERR the lease was not extended'
      else
        -- Only what is a lock is written to.
        if what == 'l' and sub(value, -2) ~= ' !' and string.find(value, '^%x+ %d+%+%d+ ') then
          try('APPEND', name, ' !')
        end
        reply = { call('PTTL', name), value }
      end
    end
    at = at + 4
  end
  if reply then
    odd = odd or { 0 }
    odd[#odd + 1] = place
    odd[#odd + 1] = reply
  end
  place = place + 1
end
if not odd then
  return base
end
odd[1] = base
return odd
