-- Looks who has a lock, without reading all of what may be somebody's data.
-- KEYS: the lock. Reply: {how many fields, owner field, value}; or an error.
local count = redis.call('HLEN', KEYS[1])
local held = count < 9 and redis.call('HGETALL', KEYS[1]) or {}
return { count, held[1] or '', held[2] or '' }
