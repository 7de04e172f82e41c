-- Looks whether what claims hold is still there, and changes nothing: over a connection that is tracked, the server
-- notifies of the next change of what was read.
-- KEYS: for each probe the key that it reads. ARGV: the number of the call; then for each probe the command, and what it
-- asks for behind the key, or ''.
-- Reply: {{for each probe 1, or 0 where there is nothing}, that number}.
local found = {}
for n = 1, #KEYS do
  local command, part = ARGV[2 * n], ARGV[2 * n + 1]
  local reply
  if part == '' then
    reply = redis.pcall(command, KEYS[n])
  else
    reply = redis.pcall(command, KEYS[n], part)
  end
  -- What is refused is looked at by a renewal.
  found[n] = (not reply or reply == -2 or type(reply) == 'table') and 0 or 1
end
return { found, ARGV[1] }
