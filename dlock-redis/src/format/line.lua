-- A queue of waiters in a hash, for the scripts of locks with a queue and without.
-- For each place from q on, to the last that was given: q<place>, the token that waits there and until when it is
-- alive, and ?<token>, its place, the mark of its last request, and the line about it. The last place is in the field f
-- if the lock is only for the queue, and in F while readers hold the lock, or have their chance: these go on, and no
-- other claim is let in.
-- A claim in the queue that finds the lock held exclusively by a claim without a place leaves ' ><token>:<until when
-- alive>' behind that value, as far as there is room, before the mark of a listener. The release makes the queue of
-- these.
-- Time is in ms of the server's clock. The times alive are at most ALIVE ahead of it.
local ALIVE = 2000
-- The number of empty places after which the head is stored, so that later steps skip them.
local FAR = 16

-- Begins the changes of a step that renews or releases. A server that is full refuses commands that may need memory,
-- unless the script has changed something before: this is a command that needs none, whatever comes of it.
local function begin_in_any_case(token)
  call('HDEL', KEYS[1], '-' .. token)
end

-- Draws the fence of an acquire, which is about to change something.
local function begin_to_acquire()
  if ARGV[2] == 'acquire' then
    draw_first(KEYS[2])
  end
end

-- Returns the first waiter that is alive, or that asks, its place, and until when it is alive. Those before lose their
-- places.
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

-- Removes the expired shares of a shared lock. Returns how much of it is taken, and when the first of the others ends.
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

-- Returns the stored value of one holder: the newest, or any other if that one has released. A hash with more fields
-- than `most` is not read as a whole.
local function shown(newest, most)
  local value = newest and call('HGET', KEYS[1], newest)
  local all = not value and call('HLEN', KEYS[1]) <= most and call('HGETALL', KEYS[1]) or {}
  for at = 1, #all, 2 do
    local until_ms = #all[at] == 32 and tonumber(string.match(all[at + 1], '^(%d+) '))
    if until_ms and until_ms > now then
      -- The next step need not search.
      try('HSET', KEYS[1], 'h', all[at])
      return all[at + 1]
    end
  end
  return value or ''
end

-- Leaves a free lock to the queue: no other claim is let in from now on.
local function keep_for_line(last, head)
  begin_to_acquire()
  call('HDEL', KEYS[1], 'F', 'h', 'r', 'w')
  call('HSET', KEYS[1], 'f', last, 'q', head, 'n', 0, 'e', 0)
  if call('PTTL', KEYS[1]) < ALIVE then
    call('PEXPIRE', KEYS[1], ALIVE)
  end
end

-- Makes the queue of the tokens that were left behind an exclusive value. Returns the last place, 0 without any, and
-- the first token.
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
