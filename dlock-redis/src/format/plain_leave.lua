-- Releases a lock and leaves its key taken for a time: under a token that no claim has, with the fence and the line of
-- its last holder, and with the waiters, which keep their places. The release that follows a take-over looks for these,
-- and for their mark.
-- KEYS: the lock. ARGV: the token; the token that is left behind; what is put before the line; for how many ms; the
-- number of the call.
-- Reply: {0 if the token did not have the lock, 1, or 2 if a client listens for the release, that number}; or an error.
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' then
  -- Data of another program may stand in its place: the lock is gone.
  return value and not string.find(value.err, 'WRONGTYPE', 1, true) and value or { 0, ARGV[5] }
end
-- Notifies the listeners that they may ask again, and makes the reply.
local function told()
  if string.byte(value, -1) ~= 33 then
    return { 1, ARGV[5] }
  end
  -- A waiter that is not notified asks again from time to time.
  redis.pcall('PUBLISH', KEYS[1], '')
  return { 2, ARGV[5] }
end
if string.sub(value, 1, #ARGV[2]) == ARGV[2] then
  -- A key that was left already is kept no longer than before: this may be a request that arrives late.
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > tonumber(ARGV[4]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    return told()
  end
  return { 1, ARGV[5] }
end
local fence, line = string.match(value, '^ (%d+%+%d+) (.*)$', #ARGV[1] + 1)
if string.sub(value, 1, #ARGV[1]) ~= ARGV[1] or not fence then
  return { 0, ARGV[5] }
end
-- A server that is full refuses commands that may need memory, unless the script has changed something before.
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. fence .. ' ' .. ARGV[3] .. line, 'PX', ARGV[4])
return told()
