-- Any number of operations on different locks, each by itself: a refused one changes nothing, and nothing of the
-- others. Written without functions, since the server would make them anew at each call.
-- A lock is a hash with one field: the owner, with its fence and the line about it as the value.
-- KEYS: the counter of fences, if ARGV[1] is not 0; then the lock of each operation, after that of an f its counter.
-- ARGV: how many operations are an a; the number of the call; then for each operation four values, of which the first
-- says what it is:
--   a  owner field, lease in ms, line about it   take the lock, or adopt it if the owner has it already
--   f  as for a                                  take or adopt the lock, with a counter of its own
--   r  owner field, lease in ms, 1 to track      extend the lease, if the owner has the lock
--   w  owner field, channel, 1 on a cluster      release the lock and notify its waiters, if the owner has it
-- The server reports to a client the changes of the keys that it read, but for its own: a tracked lock is read once
-- more.
-- Reply: {{one for each operation}, the number of the call}. For
--   a, f  fence | {value} of an adopted lock | {remaining lease in ms, owner field or 'mode', value}
--   r, w  1 | 0
--   any of them: the text of an error
local call, try, format, find = redis.call, redis.pcall, string.format, string.find
local replies, key, last, full = {}, 1, nil, nil
if ARGV[1] ~= '0' then
  key = 2
end
if #ARGV > 6 and #KEYS > (#ARGV - 2) / 4 then
  -- A server that is full refuses a grant only to a script that has changed nothing yet, by whatever command. So a call
  -- with acquires asks before all its operations whether the server is full, by a command that changes nothing.
  local asked = try('SET', KEYS[#KEYS], '', 'NX', 'XX')
  full = find(asked.err, 'OOM', 1, true) and asked.err
end
for i = 3, #ARGV, 4 do
  local what, name, owner = ARGV[i], KEYS[key], ARGV[i + 1]
  local reply
  key = key + 1
  if what == 'a' or what == 'f' then
    local left = try('PTTL', name)
    if left == -2 then
      -- The counter first, as it can be refused: a server that is full, read-only or short of replicas then changes
      -- nothing.
      local fence = last
      if full then
        fence = { err = full }
      elseif what == 'f' then
        fence = try('INCR', KEYS[key])
      elseif not fence then
        -- The fences of all grants of this call.
        fence = try('INCRBY', KEYS[1], ARGV[1])
      end
      if type(fence) ~= 'number' then
        reply = fence.err .. ' in the counter of fences'
      else
        if what == 'f' or not last then
          -- The counter keeps up with the server's clock, so that it goes on upwards if it was lost with all data, or
          -- if a replica takes over that had not seen the last grants. A millisecond of slack spares most writes.
          local counter, count = KEYS[1], ARGV[1]
          if what == 'f' then
            counter, count = KEYS[key], 1
          end
          local time = call('TIME')
          local now = time[1] * 1000000 + time[2]
          if fence < now - 1000 then
            fence = now + count
            call('SET', counter, format('%.0f', fence))
          end
          -- Numbers have 53 bits here. A counter that is far beyond the clock holds no fence.
          if fence < now + 315360000000000 then
            fence = fence - count
          else
            call('DECRBY', counter, count)
            reply = 'FENCES ' .. counter
          end
        end
        fence = fence + 1
        reply = reply or try('HSET', name, owner, format('%.0f %s', fence, ARGV[i + 3]))
        if reply == 1 then
          reply = try('PEXPIRE', name, ARGV[i + 2])
          if reply == 1 then
            reply = fence
          else
            try('HDEL', name, owner)
          end
        end
        if what == 'a' and type(reply) == 'number' then
          last = fence
        end
      end
    elseif type(left) == 'table' then
      reply = left
    else
      reply = try('HGET', name, owner)
      if type(reply) == 'string' then
        reply = try('PEXPIRE', name, ARGV[i + 2]) == 1 and { reply } or 'ERR the lease was not extended'
      elseif not reply then
        reply = try('HLEN', name)
        if type(reply) == 'number' then
          -- A hash with more fields than one owner has the mode of a read-write lock, or is data of another program.
          local held = reply == 1 and call('HGETALL', name) or { 'mode', call('HGET', name, 'mode') or '' }
          reply = { left, held[1], held[2] }
        end
      end
    end
    if what == 'f' then
      key = key + 1
    end
  else
    if what == 'r' then
      reply = try('HEXISTS', name, owner)
      if reply == 1 then
        reply = try('PEXPIRE', name, ARGV[i + 2])
        if ARGV[i + 3] == '1' then
          try('PTTL', name)
        end
      end
    else
      -- Without its only field the hash is gone.
      reply = try('HDEL', name, owner)
      if reply == 1 then
        -- Redisson subscribes to sharded channels if a cluster has them, unless it is configured not to.
        if ARGV[i + 3] == '1' then
          try('SPUBLISH', ARGV[i + 2], '0')
        end
        try('PUBLISH', ARGV[i + 2], '0')
      end
    end
    if type(reply) == 'table' and find(reply.err, 'WRONGTYPE', 1, true) then
      -- Data of another program stands in its place: the lock is gone.
      reply = 0
    end
  end
  if type(reply) == 'table' and reply.err then
    reply = reply.err
  end
  replies[#replies + 1] = reply
end
return { replies, ARGV[2] }
