-- Tries the commands that locks need, and changes nothing: the lock has a name that no key of dlock has, and commands
-- that would write are refused for their arguments.
-- KEYS or ARGV: the lock, the counter; behind them in ARGV the channel, and the number of the call.
-- Reply: {the commands that the user may not use there, with a "!" those that the server lacks, with a "~" the keys and
-- with a "&" the channels that the user may not use, that number}.
local lock, counter, missing = KEYS[1] or ARGV[1], KEYS[2] or ARGV[2], {}
local tries = {
  { 'INCRBY', counter, 'x' }, { 'SET', counter, '', 'NX', 'XX' }, { 'TIME' }, { 'HSET', lock, 'a', 'b', 'c' }, { 'HLEN', lock },
  { 'HGET', lock, 'a' }, { 'HGETALL', lock }, { 'HEXISTS', lock, 'a' }, { 'HDEL', lock, 'a' }, { 'PTTL', lock },
  { 'PEXPIRE', lock, 1 }, { 'PUBLISH', ARGV[#ARGV - 1], '' },
}
for n = 1, #tries do
  local reply = redis.pcall(unpack(tries[n]))
  local refused = type(reply) == 'table' and reply.err or ''
  -- Without a prefix nothing is known of the keys that the user may use.
  local command = string.find(refused, 'to run the') or string.find(refused, "can't run this")
  local object = KEYS[1] and (string.find(refused, 'ermission') or string.find(refused, "the script can't"))
  if command then
    missing[#missing + 1] = tries[n][1]
  elseif object then
    missing[#missing + 1] = (tries[n][1] == 'PUBLISH' and '&' or '~') .. tries[n][2]
  elseif string.find(refused, 'nknown .*command called from') then
    missing[#missing + 1] = '!' .. tries[n][1]
  end
end
return { missing, ARGV[#ARGV] }
