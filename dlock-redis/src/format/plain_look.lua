-- Looks at the holder of a lock.
-- KEYS: the lock. ARGV: the number of the call.
-- Reply: {{remaining lease in ms, value}, that number}; or an error.
return { { redis.call('PTTL', KEYS[1]), redis.call('GETRANGE', KEYS[1], 0, 511) }, ARGV[1] }
