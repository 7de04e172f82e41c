-- Operations on different locks, each on its own: one that is refused changes nothing, and nothing of the others.
-- Written without functions, since the server would make them anew at each call.
-- A lock is a string that expires: the token, the fence as a sum, and who holds it. It ends with " !" where somebody
-- listens for its release.
-- KEYS: the locks of withdrawals, renewals and acquires, in this order; behind acquires the counter of fences.
-- ARGV: how many withdrawals, renewals, and acquires whose makers listen; then
--   for each withdrawal: token
--   for each renewal:    token, lease in ms
--   for each acquire:    token, lease in ms, what is added to the first fence of the call and who it is
-- Reply: the first fence of the call, or 0 without a grant, if all went well. Otherwise {that, place in KEYS, reply, ...}
-- with the replies of the others:
--   0                              a renewal or withdrawal found nothing of its own
--   {value}                        an acquire found its own lock and extended it
--   {remaining lease in ms, value} somebody else has the lock
--   the text of an error
local call, try, sub, format = redis.call, redis.pcall, string.sub, string.format
local withdrawals, renewals, listeners = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local owned, base, odd, at = withdrawals + renewals, 0, {}, 4
if owned > 0 then
  local values = call('MGET', unpack(KEYS, 1, owned))
  local gone, heard = {}, {}
  for place = 1, owned do
    local value, token, reply = values[place], ARGV[at], nil
    if not value or sub(value, 1, #token) ~= token then
      reply = 0
    elseif place <= withdrawals then
      gone[#gone + 1] = KEYS[place]
      if sub(value, -2) == ' !' then
        heard[#heard + 1] = KEYS[place]
      end
    else
      reply = try('PEXPIRE', KEYS[place], ARGV[at + 1])
      if reply == 1 then
        reply = nil
      end
    end
    if place <= withdrawals then
      at = at + 1
    else
      at = at + 2
    end
    if reply then
      odd[#odd + 1] = place
      odd[#odd + 1] = type(reply) == 'table' and reply.err or reply
    end
  end
  if #gone > 0 then
    local done = try('DEL', unpack(gone))
    if type(done) == 'table' then
      -- What was not found needs no deleting.
      return done
    end
    for n = 1, #heard do
      try('PUBLISH', heard[n], '')
    end
  end
end
local first
for place = owned + 1, #KEYS - 1 do
  local name, token, value, reply = KEYS[place], ARGV[at], nil, nil
  if base == 0 then
    -- Who finds the first lock taken changes nothing.
    value = try('GETRANGE', name, 0, 511)
    if value == '' then
      value = nil
      -- First what can be refused: a server that is full, read-only or short of replicas changes nothing.
      local last = try('GET', KEYS[#KEYS])
      if type(last) == 'table' then
        reply = last.err
      else
        local time = call('TIME')
        local now = time[1] * 1000000 + time[2]
        last = tonumber(last or 0)
        if last and last < now + 315360000000000 then
          -- Fences keep up with the server's clock, so that they go on upwards when the counter was lost with all data,
          -- or when a replica takes over that had not seen the last grants.
          local next = now > last and now or last + 1
          local set = try('SET', KEYS[#KEYS], format('%.0f', next + #KEYS - owned - 2))
          if set.err then
            reply = set.err
          else
            base, first = next, format(' %.0f+', next)
          end
        else
          reply = 'FENCES ' .. KEYS[#KEYS]
        end
      end
    end
  end
  if base ~= 0 and not value then
    reply = try('SET', name, token .. first .. ARGV[at + 2], 'NX', 'PX', ARGV[at + 1])
    if not reply then
      value = try('GETRANGE', name, 0, 511)
    else
      reply = reply.err
    end
  end
  if value then
    if type(value) == 'table' then
      reply = value.err
    elseif sub(value, 1, #token) == token then
      reply = try('PEXPIRE', name, ARGV[at + 1]) == 1 and { value } or 'ERR the lease was not extended'
    else
      -- Only what is a lock is written to.
      if place - owned <= listeners and sub(value, -2) ~= ' !' and string.find(value, '^%x+ %d+%+%d+ ') then
        try('APPEND', name, ' !')
      end
      reply = { call('PTTL', name), value }
    end
  end
  at = at + 3
  if reply then
    odd[#odd + 1] = place
    odd[#odd + 1] = reply
  end
end
if #odd == 0 then
  return base
end
return { base, unpack(odd) }
