-- Looks who has a lock, without reading all of what may be somebody's data.
-- KEYS: the lock. ARGV: the number of the call.
-- Reply: {{remaining lease in ms, how many fields, owner field or 'mode', value}, that number}; or an error.
local count = redis.call('HLEN', KEYS[1])
local held = count == 1 and redis.call('HGETALL', KEYS[1]) or { 'mode', redis.call('HGET', KEYS[1], 'mode') or '' }
return { { redis.call('PTTL', KEYS[1]), count, held[1], held[2] }, ARGV[1] }
