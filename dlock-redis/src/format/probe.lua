-- Looks whether claims still have what they hold, and changes nothing: over a tracked connection, the server reports
-- the next change of the keys that were read.
-- KEYS: for each probe the key that it reads. ARGV: the number of the call; then for each probe the command, and its
-- argument behind the key, or ''.
-- Reply: {{for each probe 1, or 0 if there is nothing}, that number}.
local found = {}
for n = 1, #KEYS do
  local command, part = ARGV[2 * n], ARGV[2 * n + 1]
  local reply
  if part == '' then
    reply = redis.pcall(command, KEYS[n])
  else
    reply = redis.pcall(command, KEYS[n], part)
  end
  -- A refused read counts as not found: the renewal that follows says what is there.
  found[n] = (not reply or reply == -2 or type(reply) == 'table') and 0 or 1
end
return { found, ARGV[1] }
