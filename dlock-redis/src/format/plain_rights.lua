-- Tries the commands that locks need, and changes nothing: the lock has a name that no key of dlock has, and commands
-- that would write are refused for their arguments.
local lock, counter, missing = KEYS[1] or ARGV[1], KEYS[2] or ARGV[2], {}
local tries = {
  { 'INCRBY', counter, 'x' }, { 'SET', counter, '', 'NX', 'XX' }, { 'TIME' }, { 'GET', lock }, { 'GETRANGE', lock, 0, 0 },
  { 'PTTL', lock }, { 'PEXPIRE', lock, 1 }, { 'DEL', lock }, { 'PUBLISH', lock, '' },
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
if #missing == 0 then
  -- The key that this makes is deleted at once.
  local reply = redis.pcall('APPEND', lock, '')
  if type(reply) ~= 'table' then
    redis.pcall('DEL', lock)
  elseif string.find(reply.err, 'to run the') or string.find(reply.err, "can't run this") then
    missing[1] = 'APPEND'
  elseif string.find(reply.err, 'nknown .*command called from') then
    missing[1] = '!APPEND'
  end
end
return { missing, ARGV[#ARGV] }
