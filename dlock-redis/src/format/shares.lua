-- One step on a shared lock: on one with readers, or on a semaphore; and the attempt of a writer that found such a
-- lock.
-- A lock with readers, and a semaphore, is a hash: n, how many permits or readers there are now; e, when the first of
-- them may end; of, the number of permits of a semaphore; h, the token that was granted last; l, if a client listens
-- for releases; w, the token of a waiter that keeps newcomers out, since when, and until when it is alive; r, until
-- when only readers are let in, since one of them waited while the lock was held exclusively, if the lock is free
-- since; and for each token until when it holds the lock, how many permits, the fence, and the line about the holder.
-- Times are in ms of the server's clock. A lock that is held exclusively is a string, as in the other scripts. A lock
-- that is kept for its queue has the field f, and is not changed here, see fair.lua. Beside readers a queue has the
-- field F: no other claim is let in, and the last of them leaves the lock to the queue.
-- KEYS: the lock; for an acquire the counter of fences.
-- ARGV: the number of the call; the operation; then:
--   acquire   token; lease in ms; 'read', 'write', or the number of permits; how many are taken; 1 if it keeps
--             newcomers out while it waits; 1 if it listens; the line about the holder
--   renew     token; lease in ms
--   downgrade token; lease in ms: an exclusive lock becomes a reader's
--   withdraw  token
--   look
--   resize    the number of permits
--   force     the fences of the holders that are meant, or '' for all
-- Reply: {result, the number of the call}, or an error, and then nothing was changed. The result:
--   acquire   the fence; {fence} or {value} of a lock that the token has already; {ms to wait, value} if it is taken;
--             {-1, number of permits} of a semaphore, or {-1, 0} of a lock, that cannot be what was asked for
--   renew, downgrade  1, or 0 if the token does not have the lock
--   withdraw  1, or 0 if the token did not have the lock; 2 if a client listens
--   look      {number of permits or 0, ms now, value, ...}
--   resize    the number before, or 0 without a semaphore; {-1, 0} of a lock
--   force     1, 0 if the lock was free, or 3 if a client holds it that is not meant
local PREFERENCE, REMEMBERED, JOIN = 10000, 86400000, 5
-- The most holders at a time, and the most fields of the hash: a larger one is no lock, and never read.
local HOLDERS, FIELDS = 10000, 20016
local name, operation, token = KEYS[1], ARGV[2], ARGV[3]
local wrong = 'WRONGTYPE the key holds something that is no lock'

local kind = call('TYPE', name)
kind = kind.ok or kind
local n, ends, of, last, listens, waits, own, fair, line, head
local chance = 0
if kind == 'hash' then
  local found = call('HMGET', name, 'n', 'e', 'of', 'h', 'l', 'w', token, 'f', 'r', 'F', 'q')
  n, ends, of = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
  last, listens, waits, own, fair = found[4], found[5], found[6], found[7], found[8]
  chance = tonumber(found[9]) or 0
  line, head = tonumber(found[10]), tonumber(found[11]) or 1
  if not n or not ends then
    return redis.error_reply(wrong)
  end
elseif kind ~= 'none' and kind ~= 'string' then
  return redis.error_reply(wrong)
end
local purges = n and n > 0 and ends <= now and not fair
local reads = purges or fair and operation == 'acquire' or operation == 'look' or operation == 'force'
if kind == 'hash' and reads and call('HLEN', name) > FIELDS then
  return redis.error_reply(wrong)
end

if operation == 'look' or operation == 'force' then
  local held, all = { of or 0, text(now) }, {}
  if kind == 'hash' then
    all = call('HGETALL', name)
    for at = 1, #all, 2 do
      local until_ms = #all[at] == 32 and tonumber(string.match(all[at + 1], '^(%d+) '))
      if until_ms and until_ms > now then
        held[#held + 1] = all[at + 1]
      end
    end
  elseif kind == 'string' then
    return redis.error_reply(wrong)
  end
  if operation == 'look' then
    return done(held)
  end
  local meant = {}
  for known in string.gmatch(token, '%d+') do
    meant[known] = true
  end
  for at = 3, token ~= '' and #held or 0 do
    if not meant[string.match(held[at], '^%d+ %d+ (%d+)') or ''] then
      return done(3)
    end
  end
  if fair or line then
    -- The waiters in the queue ask more often than it is kept.
    for at = 1, #all, 2 do
      if #all[at] == 32 then
        call('HDEL', name, all[at])
      end
    end
    call('PEXPIRE', name, ALIVE)
    keep_for_line(fair or line, head)
    local next = first_in_line(head, tonumber(fair or line))
    if next then
      try('PUBLISH', name .. '#' .. next, '')
    end
  else
    call('DEL', name)
  end
  try('PUBLISH', name, '')
  return done(#held > 2 and 1 or 0)
end

if operation == 'resize' then
  -- The hash may exist for longer than the shares in it.
  local held = kind == 'hash' and not of and n > 0 and (ends > now or not fair and purge() > 0)
  if kind == 'string' or held then
    return done({ -1, 0 })
  elseif not of then
    return done(0)
  end
  call('HSET', name, 'of', token)
  try('PUBLISH', name, '')
  return done(of)
end

if fair then
  local has, waiter, _, alive = n == 1 and ends > now, nil, nil, nil
  if operation ~= 'acquire' then
    return done(0)
  elseif not has then
    waiter, _, alive = first_in_line(head, tonumber(fair))
  end
  if has or waiter then
    if tonumber(ARGV[5]) then
      return done({ -1, 0 })
    elseif ARGV[8] == '1' and not listens then
      call('HSET', name, 'l', 1)
    end
    local left = (has and ends or tonumber(alive)) - now
    return done({ left, has and call('HGET', name, last) or '' })
  end
  -- The lock is free, and no waiter in the queue is alive, however long the hash would still be kept.
  begin_to_acquire()
  call('DEL', name)
  kind, n, ends, last, own = 'none', nil, nil, nil, nil
end

if kind == 'hash' and (own or operation == 'withdraw') then
  if own and (tonumber(string.match(own, '^%d+')) or 0) <= now then
    begin_to_acquire()
  end
  begin_in_any_case(token)
end

-- Expired shares are removed before anything is decided by them. No share ends before `e`.
if purges then
  n, ends = purge()
  own = own and call('HGET', name, token)
end

-- Keeps the hash as long as the longest of its entries.
local function keep(lease)
  local least = of and math.max(lease, REMEMBERED) or lease
  if call('PTTL', name) < least then
    call('PEXPIRE', name, text(least))
  end
end

if operation == 'renew' or operation == 'downgrade' then
  if kind == 'string' then
    local value = call('GETRANGE', name, 0, 511)
    local first, number, who = string.match(value, '^%x+ (%d+)%+(%d+) (.*)$')
    if string.sub(value, 1, #token) ~= token or not first then
      return done(0)
    elseif operation == 'renew' then
      return done(call('PEXPIRE', name, ARGV[4]))
    end
    local expires, mark = text(now + tonumber(ARGV[4])), string.match(who, ' %??!$') or ''
    who = string.gsub(string.sub(who, 1, #who - #mark), ' >%x+:%d+', '')
    -- Checked before the first change: without the rest of the commands the lock would have no holder, or stay for
    -- ever.
    local why = denied({ 'HSET', name, 'a', 'b', 'c' }, { 'PTTL', name }, { 'PEXPIRE', name, 'x' })
    if why then
      return why
    end
    local share = expires .. ' 1 ' .. text(first + number) .. ' ' .. who
    call('DEL', name)
    local places = line_behind(value)
    call('HSET', name, 'n', 1, 'e', expires, 'h', token, token, share)
    if places > 0 then
      call('HSET', name, 'F', places, 'q', 1)
    end
    keep(tonumber(ARGV[4]))
    if mark ~= '' then
      call('HSET', name, 'l', 1)
      try('PUBLISH', name, '')
    end
    return done(1)
  elseif not own then
    return done(0)
  end
  local lease = tonumber(ARGV[4])
  local rest = string.match(own, '^%d+( .*)$')
  call('HSET', name, token, text(now + lease) .. rest)
  keep(lease)
  return done(1)
end

if operation == 'withdraw' then
  if kind == 'string' then
    local value = call('GET', name)
    if string.sub(value, 1, #token) ~= token then
      return done(0)
    end
    call('DEL', name)
    if string.sub(value, -1) ~= '!' then
      return done(1)
    end
    local places, next = line_behind(value)
    if next then
      call('HSET', name, 'l', 1)
      keep_for_line(places, 1)
      try('PUBLISH', name .. '#' .. next, '')
      return done(2)
    end
    try('PUBLISH', name, '')
    return done(2)
  elseif kind == 'none' then
    return done(0)
  end
  local kept_out = waits and string.sub(waits, 1, #token) == token
  if own then
    n = n - tonumber(string.match(own, '^%d+ (%d+) '))
    call('HSET', name, 'n', n)
    call('HDEL', name, token, n == 0 and 'r' or token)
    chance = n == 0 and 0 or chance
  end
  if kept_out then
    call('HDEL', name, 'w')
    waits = false
  end
  local next, place
  if own and n == 0 and line then
    next, place = first_in_line(head, line)
  end
  if next then
    keep_for_line(line, place)
    try('PUBLISH', name .. '#' .. next, '')
    return done(listens and 2 or 1)
  elseif n == 0 and not of and not waits and chance <= now then
    call('DEL', name)
  elseif own and of then
    keep(0)
  end
  if (own or kept_out) and listens then
    try('PUBLISH', name, '')
  end
  return done(own and (listens and 2 or 1) or 0)
end

local lease, mode, take = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local prefers, listening, who = ARGV[7] == '1', ARGV[8] == '1', ARGV[9]
local permits = tonumber(mode)

if kind == 'string' then
  local value = call('GETRANGE', name, 0, 511)
  if not string.find(value, '^%x+ %d+%+%d+ ') then
    return redis.error_reply(wrong)
  elseif permits then
    return done({ -1, 0 })
  elseif string.sub(value, 1, #token) == token then
    call('PEXPIRE', name, text(lease))
    return done({ value })
  end
  local mark = mode == 'read' and ' ?!' or '!'
  if listening and string.sub(value, -#mark) ~= mark then
    call('APPEND', name, mark == '!' and ' !' or mark)
  end
  return done({ call('PTTL', name), value })
end

if own then
  -- The reply to an earlier attempt was lost.
  local rest, known = string.match(own, '^%d+( %d+ (%d+) .*)$')
  if not known then
    return redis.error_reply('ERR somebody removed the fence from the lock; do not edit locks')
  end
  call('HSET', name, token, text(now + lease) .. rest)
  keep(lease)
  return done({ tonumber(known) })
end

if kind == 'hash' then
  if of and of ~= permits then
    return done({ -1, of })
  elseif permits and not of and n > 0 then
    return done({ -1, 0 })
  end
  local waiter, since, alive
  if waits then
    waiter, since, alive = string.match(waits, '^(%x+) (%d+) (%d+)$')
    since, alive = tonumber(since), tonumber(alive)
  end
  local ours = waiter == token
  local kept_out = waiter and not ours and math.min(alive, since + PREFERENCE) or 0
  if line then
    local stands, _, alive = first_in_line(head, line)
    kept_out = math.max(kept_out, tonumber(alive) or 0)
    if not stands then
      begin_to_acquire()
      call('HDEL', name, 'F', 'q')
    end
  end
  if mode == 'read' and chance > now then
    kept_out = 0
  end
  local room = mode == 'read' or mode == 'write' and n == 0 and chance <= now or permits and n + take <= permits
  room = room and (n < HOLDERS or call('HLEN', name) < HOLDERS)
  if not room or kept_out > now then
    if prefers then
      if not waiter or alive <= now or since + 2 * PREFERENCE <= now then
        ours, since = true, now
      end
      if ours then
        call('HSET', name, 'w', token .. ' ' .. text(since) .. ' ' .. text(now + ALIVE))
        keep(ALIVE)
      end
    end
    if listening and not listens then
      call('HSET', name, 'l', 1)
    end
    local left = room and kept_out - now or (n == 0 and chance or ends) - now
    return done({ math.max(left, 1), n > 0 and shown(last, FIELDS) or '' })
  end
  waits = not ours and waits
end

-- The counter first, as it can be refused: a server that is full, read-only or short of replicas then changes nothing.
draw_first(KEYS[2])
if refused then
  return refused
end

if mode == 'write' then
  if kind == 'hash' then
    call('DEL', name)
  end
  -- The value gets the mark of the listeners, so that its release is published to them.
  local value = token .. ' ' .. text(fence) .. '+0 ' .. who .. (listens and ' !' or '')
  call('SET', name, value, 'PX', text(lease))
  return done(fence)
end
n = (n or 0) + take
local expires = now + lease
ends = n > take and math.min(ends, expires) or expires
local value = text(expires) .. ' ' .. take .. ' ' .. text(fence) .. ' ' .. who
call('HSET', name, 'n', n, 'e', text(ends), 'h', token, token, value)
if permits and not of then
  of = permits
  call('HSET', name, 'of', of)
end
if kind == 'hash' and not waits then
  call('HDEL', name, 'w')
end
if listening and not listens or kind == 'none' and listens then
  call('HSET', name, 'l', 1)
end
if chance > now + JOIN then
  -- The readers that waited with this one are let in now, and then it is the turn of the writers.
  call('HSET', name, 'r', text(now + JOIN))
end
keep(lease)
return done(fence)
