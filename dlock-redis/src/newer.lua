local version, fence = ARGV[#ARGV - 1] or '', ARGV[#ARGV] or ''
-- A number without leading zeros, or nil. Numbers stay text: one of Lua has 53 bits.
local function whole(text)
  local sign, digits = string.match(text, '^(%-?)0*(%d+)$')
  return digits and (digits == '0' and digits or sign .. digits)
end
local function below(a, b)
  local minus = string.sub(a, 1, 1) == '-'
  if minus ~= (string.sub(b, 1, 1) == '-') then
    return minus
  end
  if minus then
    a, b = string.sub(b, 2), string.sub(a, 2)
  end
  return #a < #b or (#a == #b and a < b)
end
version = whole(version)
if not version or below('9223372036854775807', version) or below(version, '-9223372036854775808') then
  return {malformed}
end
if fence ~= '' then
  fence = whole(fence)
  if not fence or below(fence, '0') or below('18446744073709551615', fence) then
    return {malformed}
  end
end
local known = redis.pcall('HMGET', KEYS[#KEYS], 'version', 'fence')
if known.err and not string.find(known.err, 'WRONGTYPE', 1, true) then
  return known
end
local seen, last = known[1], known[2]
if known.err or (seen and (last == '') ~= (fence == '')) then
  return {mixed}
end
if last and below(fence, last) then
  return {stale}
end
if seen == version then
  return {same}
end
if seen and below(version, seen) then
  return {older}
end
-- First, so that who may not write this writes nothing; what stood there stands there again if the body fails.
redis.call('HSET', KEYS[#KEYS], 'version', version, 'fence', fence)
local done, result = pcall(function()
{body}
end)
if not done or (type(result) == 'table' and result.err) then
  if seen then
    redis.call('HSET', KEYS[#KEYS], 'version', seen, 'fence', last)
  else
    redis.call('HDEL', KEYS[#KEYS], 'version', 'fence')
  end
end
if not done then
  error(result, 0)
end
return result
