local version, fence = ARGV[#ARGV - 1] or '', ARGV[#ARGV] or ''
-- Returns a number without leading zeros, or nil. Numbers stay text, as a number of Lua has only 53 bits.
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
-- Tried first, by arguments that change nothing, so that the body writes nothing for a user that may not write this.
-- The version counts once the body has ended well.
local tried = redis.pcall('HSET', KEYS[#KEYS], 'version', version, 'fence')
if not string.find(tried.err, 'rong number of arg', 1, true) then
  return tried
end
local result = (function()
{body}
end)()
if type(result) ~= 'table' or not result.err then
  redis.call('HSET', KEYS[#KEYS], 'version', version, 'fence', fence)
end
return result
