-- Takes over a lock that was left under the token of a baton; see plain_leave.lua.
-- KEYS: the lock; the counter of fences. ARGV: the number of the call; the token; the one that was left behind; the
-- lease in ms; the line about the holder.
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result is the fence of a lock
-- that was taken over; {value} of a lock that the token has already; {remaining lease in ms, value} if another token
-- stands there; 0 if the key is free.
local LONGEST = 500
local value = try('GETRANGE', KEYS[1], 0, 511)
if type(value) == 'table' then
  return value
end
local token = string.sub(value, 1, #ARGV[2])
if token == ARGV[2] then
  local extended = try('PEXPIRE', KEYS[1], ARGV[4])
  return type(extended) == 'table' and extended or done({ value })
elseif token ~= ARGV[3] then
  return value == '' and done(0) or done({ call('PTTL', KEYS[1]), value })
end
draw_first(KEYS[2])
if refused then
  return refused
end
-- The waiters are noted at the end of the value. Before them stands as much of the line about the holder as there is
-- room for, in whole fields: a mark, and the field that says that the key was left, may still be added.
local line = string.find(value, ' >%x+:%d+', 40)
local waiting = line and string.sub(value, line) or string.match(value, ' %??!$') or ''
local taken, who = ARGV[2] .. ' ' .. text(fence) .. '+0 ', ARGV[5]
while #taken + #who + #waiting > LONGEST and who ~= '' do
  who = string.match(who, '^(.*) ') or ''
end
call('SET', KEYS[1], taken .. who .. waiting, 'PX', ARGV[4])
return done(fence)
