-- Draws a fence, as the scripts that take locks do.
-- KEYS: the counter. ARGV: the number of the call. Reply: {the fence, that number}, or an error.
draw_first(KEYS[1])
return refused or done(fence)
