-- fairness.lua: chooses the items that a claim takes, by the rules of model.queue_fairness. It reads only the wanted lanes, and of their
-- items a small multiple of the number that it takes. It writes nothing. Needs tiers.lua and heap.lua.
-- A share is the part of a workspace in a claim: name, weight, rate, base (its first tag), allowance, taken, lines. A line is a lane:
-- lane, queue, and a page of its items with their ranks.

-- How many may start now; see rate_allowance and later_rate_ms there. A thousandth makes up for rounding.
local function rate_allowance(rate, rate_ms, now)
  if not rate then
    return math.huge
  end
  if rate <= 0 then
    return 0
  end
  local interval = 1000 / rate
  local ahead = now + math.max(1000 - interval, 0) - math.max(rate_ms, now)
  return math.max(math.floor(ahead / interval + 0.001) + 1, 0)
end

local function later_rate_ms(rate, rate_ms, now, started)
  return math.max(rate_ms, now) + started * 1000 / rate
end

-- Fields of a hash for many names, however many.
local function fields_of(key, names)
  local values = {}
  for first = 1, #names, 4000 do
    for _, value in ipairs(redis.call('HMGET', queue .. ':' .. key, unpack(names, first, math.min(first + 3999, #names)))) do
      values[#values + 1] = value
    end
  end
  return values
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do
    set[name] = true
  end
  return next(set) and set
end

-- The lanes that are asked for, by workspace; the workspaces, the queues and the number of lanes.
local function wanted_lanes(queues, workflows)
  local lines, workspaces, names, seen, count = {}, {}, {}, {}, 0
  queues, workflows = set_of(queues), set_of(workflows)
  for _, lane in ipairs(redis.call('SMEMBERS', queue .. ':ready')) do
    local workspace, name, workflow = string.match(lane, '^([^/]*)/([^/]*)/(.*)$')
    if (not queues or queues[name]) and (not workflows or workflows[workflow]) then
      if not lines[workspace] then
        lines[workspace] = {}
        workspaces[#workspaces + 1] = workspace
      end
      if not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
      table.insert(lines[workspace], {lane = lane, queue = name, page = {}, at = 1, next = 0, is_whole = false})
      count = count + 1
    end
  end
  return lines, workspaces, names, count
end

-- The workspaces that have something ready, with nothing looked at but their passes.
local function shares_of(lines, workspaces, virtual_time)
  local shares = {}
  local rows, passes, rates = fields_of('workspaces', workspaces), fields_of('passes', workspaces), fields_of('rates', workspaces)
  for i, name in ipairs(workspaces) do
    shares[i] = {name = name, row = rows[i], rate_ms = rates[i] or 0, taken = 0, base = math.max(passes[i] or 0, virtual_time),
      lines = lines[name]}
  end
  return shares
end

-- What a workspace may start. Used slots are counted from the set of active items, in this same script.
local function look_at(share, now)
  local row = cmsgpack.unpack(share.row)
  local limits = limits_of(row)
  share.weight, share.rate, share.rate_ms, share.allowance = limits[2], limits[3], tonumber(share.rate_ms), 0
  if not row[2] then
    local free = limits[1] and limits[1] - redis.call('SCARD', queue .. ':used:' .. share.name) or math.huge
    share.allowance = math.min(free, rate_allowance(share.rate, share.rate_ms, now))
  end
end

-- What the queues that were set up may start: {left, rate, rate_ms, taken} by name.
local function open_queues(names, now)
  local open = {}
  local rows, rates = fields_of('queues', names), fields_of('queue_rates', names)
  for i, name in ipairs(names) do
    if rows[i] then
      local is_paused, concurrency, rate = unpack(cmsgpack.unpack(rows[i]), 1, 3)
      local free = concurrency and concurrency - redis.call('SCARD', queue .. ':busy:' .. name) or math.huge
      local rate_ms = tonumber(rates[i] or 0)
      local left = is_paused and 0 or math.min(free, rate_allowance(rate, rate_ms, now))
      open[name] = {left = left, rate = rate, rate_ms = rate_ms, taken = 0}
    end
  end
  return open
end

-- The rank and number of a line's next item, or nil.
local function next_of(line, chunk)
  if line.at > #line.page and not line.is_whole then
    line.page = redis.call('ZRANGE', queue .. ':ready:' .. line.lane, line.next, line.next + chunk - 1, 'WITHSCORES')
    line.at, line.next, line.is_whole = 1, line.next + chunk, #line.page < 2 * chunk
  end
  return tonumber(line.page[line.at + 1]), line.page[line.at]
end

-- The line that a share's next item stands in, and the item; nil if it may start no more.
local function first_line(share, open, chunk)
  if share.taken >= share.allowance then
    return nil
  end
  local best, best_rank, best_number
  for _, line in ipairs(share.lines) do
    if not open[line.queue] or open[line.queue].left > 0 then
      local rank, number = next_of(line, chunk)
      if number and (not best or rank < best_rank or (rank == best_rank and number < best_number)) then
        best, best_rank, best_number = line, rank, number
      end
    end
  end
  return best, best_number
end

-- Takes the items with the smallest tags; calls take(number, share, line) for each, in order. Gives the new virtual time.
-- A workspace is looked at only when its pass comes first: until then its entry has an empty number, which is before any other.
local function choose(shares, open, virtual_time, now, limit, chunk, take)
  local heap, taken = {}, 0
  local function entry_of(share)
    local line, number = first_line(share, open, chunk)
    return line and {share.base + share.taken / share.weight, number, share}
  end
  -- A queue is full: those that had their next item in it have another one now, or none.
  local function entries_after(before)
    local entries = {}
    for _, each in ipairs(before) do
      entries[#entries + 1] = each[2] == '' and each or entry_of(each[3])
    end
    heapify(entries)
    return entries
  end
  for i, share in ipairs(shares) do
    heap[i] = {share.base, '', share}
  end
  heapify(heap)
  while heap[1] and taken < limit do
    local tag, expected, share = unpack(heap[1])
    local named_queue
    if expected == '' then
      look_at(share, now)
    else
      local line, number = first_line(share, open, chunk)
      take(number, share, line)
      virtual_time, taken = math.max(virtual_time, tag), taken + 1
      share.taken, line.at = share.taken + 1, line.at + 2
      named_queue = open[line.queue]
      if named_queue then
        named_queue.left, named_queue.taken = named_queue.left - 1, named_queue.taken + 1
      end
    end
    if named_queue and named_queue.left == 0 then
      heap = entries_after(heap)
    else
      replace_first(heap, entry_of(share))
    end
  end
  return virtual_time
end
