-- Any number of operations on different locks, each on its own: one that is refused changes nothing, and nothing of
-- the others. Written without functions, since the server would make them anew at each call.
-- KEYS: for each operation the lock, and after the lock of an acquire the counter of fences.
-- ARGV: for each operation four values, the first of which says what it is:
--   a  owner field, lease in ms, who it is     take the lock, or adopt it when the owner has it already
--   r  owner field, lease in ms, -             extend the lease, if the owner has the lock
--   w  owner field, channel, -                 give the lock back and wake who waits, if the owner has it
--   i  -, -, -                                 look who has it
-- Replies, one for each operation:
--   a  fence | {fence} of an adopted lock | {remaining lease in ms, who has it, its fence}
--   r, w  1 | 0
--   i  0 | {remaining lease in ms, who has it, its fence}
--   any of them: the text of an error
local call, try = redis.call, redis.pcall
local replies, key, now = {}, 1, nil
for i = 1, #ARGV, 4 do
  local what, name, owner = ARGV[i], KEYS[key], ARGV[i + 1]
  local reply
  key = key + 1
  if what == 'a' then
    local left = try('PTTL', name)
    if left == -2 then
      -- First what can be refused: a server that is full, read-only or short of replicas changes nothing.
      reply = try('INCR', KEYS[key])
      if type(reply) == 'number' then
        -- The counter keeps up with the server's clock, so that it goes on upwards when it was lost with all data, or
        -- when a replica takes over that had not seen the last grants. A millisecond of slack spares most writes.
        if not now then
          local time = call('TIME')
          now = time[1] * 1000000 + time[2]
        end
        if reply < now - 1000 then
          reply = now
          call('SET', KEYS[key], reply)
        end
        local set = try('HSET', name, owner, '1', 'dlock', ARGV[i + 3], 'fence', reply)
        if type(set) == 'number' then
          set = try('PEXPIRE', name, ARGV[i + 2])
          if type(set) ~= 'number' then
            try('DEL', name)
          end
        end
        if type(set) ~= 'number' then
          reply = set
        end
      end
    elseif type(left) == 'table' then
      reply = left
    else
      reply = try('HMGET', name, 'dlock', 'fence', owner)
      if reply[3] then
        reply = try('PEXPIRE', name, ARGV[i + 2]) == 1 and { reply[2] } or 'ERR the lease was not extended'
      elseif not reply.err then
        reply = { left, reply[1], reply[2] }
      end
    end
    key = key + 1
  elseif what == 'i' then
    local left = try('PTTL', name)
    if left == -2 then
      reply = 0
    elseif type(left) == 'table' then
      reply = left
    else
      reply = try('HMGET', name, 'dlock', 'fence')
      if not reply.err then
        -- Another library's owner, if the user has the right to see it.
        reply = { left, reply[1] or try('HKEYS', name)[1], reply[2] }
      end
    end
  else
    reply = try('HEXISTS', name, owner)
    if reply == 1 then
      if what == 'r' then
        reply = try('PEXPIRE', name, ARGV[i + 2])
      else
        reply = try('DEL', name)
        try('PUBLISH', ARGV[i + 2], '0')
      end
    elseif reply ~= 0 and string.find(reply.err, 'WRONGTYPE', 1, true) then
      -- Somebody put data in its place: the lock is gone.
      reply = 0
    end
  end
  if type(reply) == 'table' and reply.err then
    reply = reply.err
  end
  replies[#replies + 1] = reply
end
return replies
