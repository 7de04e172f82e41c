-- A line of waiters in a hash, for the scripts of those who stand in line and of those who do not.
-- For each place from q on, to the last that was given: q<place>, the token that waits there and until when it is
-- alive, and ?<token>, its place, the mark of its last request, and who it is. The last place is in the field f where
-- the lock is only for those in line, and in F while readers have it, or have their chance: these go on, and nobody else
-- comes in.
-- Behind what is held alone by one who does not stand in line, those who do leave ' ><token>:<until when alive>', as
-- far as there is room, before the mark of one who listens: a release makes the line of that.
local ALIVE = 2000
-- So many places that nobody has are not looked at again.
local FAR = 16

-- Begins the changes of a step that renews or releases: a server that is full refuses what may need memory, unless the
-- script has changed something before by a command that needs none, whatever came of that.
local function begin_in_any_case(token)
  call('HDEL', KEYS[1], '-' .. token)
end

-- Draws the fence of an acquire, which is about to change something.
local function begin_to_acquire()
  if ARGV[2] == 'acquire' then
    draw_first(KEYS[2])
  end
end

-- Returns the first in line who is alive, or who asks, its place, and until when. Those before lose their places.
local function first_in_line(head, last, asks)
  local from, waiter, alive = head, nil, nil
  while head <= last and not waiter do
    local entry = call('HGET', KEYS[1], 'q' .. head)
    if entry then
      waiter, alive = string.match(entry, '^(%x+) (%d+)$')
      if tonumber(alive) <= now and waiter ~= asks then
        begin_to_acquire()
        call('HDEL', KEYS[1], 'q' .. head, '?' .. waiter)
        waiter, alive = nil, nil
      end
    end
    head = waiter and head or head + 1
  end
  if head > from + FAR then
    try('HSET', KEYS[1], 'q', head)
  end
  return waiter, head, alive
end

-- Takes away the shares that have run out of a lock that several hold. Returns how much is taken of it, and when the
-- first of the others ends.
local function purge()
  begin_to_acquire()
  local all, taken, ends = call('HGETALL', KEYS[1]), 0, nil
  for at = 1, #all, 2 do
    if #all[at] == 32 then
      local until_ms, share = string.match(all[at + 1], '^(%d+) (%d+) ')
      until_ms, share = tonumber(until_ms), tonumber(share)
      if not until_ms or until_ms <= now then
        call('HDEL', KEYS[1], all[at])
      else
        taken = taken + share
        ends = math.min(ends or until_ms, until_ms)
      end
    end
  end
  ends = ends or now
  call('HSET', KEYS[1], 'n', taken, 'e', text(ends))
  return taken, ends
end

-- Returns what is stored for one of those who hold the lock: the newest, or another one where that has left. What has more
-- fields than so many is not read as a whole.
local function shown(newest, most)
  local value = newest and call('HGET', KEYS[1], newest)
  local all = not value and call('HLEN', KEYS[1]) <= most and call('HGETALL', KEYS[1]) or {}
  for at = 1, #all, 2 do
    local until_ms = #all[at] == 32 and tonumber(string.match(all[at + 1], '^(%d+) '))
    if until_ms and until_ms > now then
      -- The next one need not look for it.
      try('HSET', KEYS[1], 'h', all[at])
      return all[at + 1]
    end
  end
  return value or ''
end

-- The lock, which nobody has, is only for those in line from now on.
local function keep_for_line(last, head)
  begin_to_acquire()
  call('HDEL', KEYS[1], 'F', 'h', 'r', 'w')
  call('HSET', KEYS[1], 'f', last, 'q', head, 'n', 0, 'e', 0)
  if call('PTTL', KEYS[1]) < ALIVE then
    call('PEXPIRE', KEYS[1], ALIVE)
  end
end

-- Makes the line of those who left their tokens in what was held alone. Returns the last place, 0 without any, and the
-- first of them.
local function line_behind(value)
  local last, head = 0, nil
  for waiter, alive in string.gmatch(value, ' >(%x+):(%d+)') do
    if tonumber(alive) > now then
      last, head = last + 1, head or waiter
      call('HSET', KEYS[1], 'q' .. last, waiter .. ' ' .. alive, '?' .. waiter, last)
    end
  end
  return last, head
end
