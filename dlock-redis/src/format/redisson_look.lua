-- Looks who has a lock, without reading all of what may be somebody's data.
-- KEYS: the lock. ARGV: the number of the call.
-- Reply: {{remaining lease in ms, how many fields, owner field, value}, that number}; or an error.
local count = redis.call('HLEN', KEYS[1])
local held = count < 9 and redis.call('HGETALL', KEYS[1]) or {}
return { { redis.call('PTTL', KEYS[1]), count, held[1] or '', held[2] or '' }, ARGV[1] }
