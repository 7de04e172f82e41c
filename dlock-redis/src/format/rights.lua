-- Tries the commands that one use of locks needs besides those of exclusive locks, and changes nothing: no lock has the
-- name that they get, and commands that would write are refused for their arguments, or their key is deleted at once.
-- Whether the user may use the keys of a lock shows at the first request that names them.
-- KEYS: a lock. ARGV: the number of the call; the name; a channel; then for each try a command and its arguments behind
-- the name, separated by spaces, and with a "+" before it if it makes something.
-- Reply: {the commands that the user may not use, with a "!" those that the server lacks, and with a "&" the channel if
-- the user may not publish there, that number}.
local missing = {}
local published = redis.pcall('PUBLISH', ARGV[3], '')
local why = type(published) == 'table' and published.err or ''
if string.find(why, 'to the channel') or string.find(why, 'access .*channel') then
  missing[1] = '&' .. ARGV[3]
end
for n = 4, #ARGV do
  local makes, words = string.match(ARGV[n], '^(%+?)(.*)$')
  local try = {}
  for word in string.gmatch(words, '%S+') do
    try[#try + 1] = word
    if #try == 1 then
      try[2] = ARGV[2]
    end
  end
  if makes == '' or #missing == 0 then
    local reply = redis.pcall(unpack(try))
    local refused = type(reply) == 'table' and reply.err or ''
    if string.find(refused, 'to run the') or string.find(refused, "can't run this") then
      missing[#missing + 1] = try[1]
    elseif string.find(refused, 'nknown .*command called from') then
      missing[#missing + 1] = '!' .. try[1]
    elseif makes ~= '' and refused == '' then
      local deleted = redis.pcall('DEL', ARGV[2])
      if type(deleted) == 'table' then
        redis.pcall('PEXPIRE', ARGV[2], 1)
      end
    end
  end
end
return { missing, ARGV[1] }
