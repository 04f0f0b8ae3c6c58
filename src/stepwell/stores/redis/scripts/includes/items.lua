-- items.lua: reads, moves and ends queue items, with every index that finds them. An item's number has a fixed width,
-- so that the order of bytes is the order in which items came. Needs due.lua (encoded), and before it `queue`, the prefix of these keys. Nothing here
-- has a TTL: recovery drops an ended item when its tier keeps it no longer.
--
--   number, turn                   the last item's number; the greatest start tag that any claim has taken
--   tiers, workspaces, queues      hashes: what was set up, packed (see rows.py)
--   passes, rates, queue_rates     hashes: the pass of a workspace; when its next start is due by its rate, and that of a queue
--   item:<number>                  hash: the item; priority, fence and attempts are left out for 0
--   ids, executions                hashes: item id -> number; execution -> number of its item, while that is DISPATCHED
--   keys:<workspace>               hash: idempotency key -> number
--   singles:<workspace>            hash: singleton name -> number of the item that has not ended
--   bounce:<workspace>/<name>      sorted set: QUEUED items of a debounce name
--   all, of:<workspace>            sorted sets: all items
--   active, dead                   sorted sets: CLAIMED and DISPATCHED; FAILED and CANCELLED
--   queues:<workspace>             set: the queues that a workspace has items in
--   waiting:<workspace>/<queue>    sorted set: QUEUED items by when they are ready
--   delayed                        sorted set: QUEUED items for later by when they are ready
--   ready, ready:<lane>            set: lanes (workspace/queue/workflow) with something ready; sorted set: those items by -priority
--   used:<workspace>, busy:<queue> sets: CLAIMED and DISPATCHED items; their size is the number of used slots
--   claims                         sorted set: CLAIMED items by the end of their lease
--   ended:<workspace>              sorted set: ended items by when they ended
--   waits:<workspace>/<queue>      list: how long the latest started items had been ready
--@include queue_keys.lua
local ACTIVE = {CLAIMED = true, DISPATCHED = true}
local ENDED = {COMPLETED = true, FAILED = true, CANCELLED = true}
local FIELDS = {'id', 'workspace', 'queue', 'workflow', 'execution', 'status', 'priority', 'run_at', 'enqueued', 'fence', 'attempts',
  'most', 'singleton', 'debounce', 'digest', 'key', 'error'}
local NUMBERS = {'priority', 'run_at', 'enqueued', 'fence', 'attempts', 'most'}

local function ready_since(item)
  return math.max(item.run_at, item.enqueued)
end

local function read_item(number, fields)
  local values = number and redis.call('HMGET', queue .. ':item:' .. number, unpack(fields))
  if not values or not values[1] then
    return nil
  end
  local item = {number = number}
  for i, field in ipairs(fields) do
    item[field] = values[i] or nil
  end
  for _, field in ipairs(NUMBERS) do
    item[field] = tonumber(item[field] or 0)
  end
  return item
end

local function item_at(number)
  return read_item(number, FIELDS)
end

local function item_with(id)
  return item_at(redis.call('HGET', queue .. ':ids', id))
end

local function leave_ready(item)
  local lane = lane_of(item)
  if redis.call('ZREM', queue .. ':ready:' .. lane, item.number) == 1 and redis.call('EXISTS', queue .. ':ready:' .. lane) == 0 then
    redis.call('SREM', queue .. ':ready', lane)
  end
end

-- Has an item found among those of its status.
local function join(item, now)
  local number, workspace = item.number, named(item.workspace)
  if item.status == 'QUEUED' then
    redis.call('ZADD', queue .. ':waiting:' .. line_of(item), ready_since(item), number)
    if item.run_at > now then
      redis.call('ZADD', queue .. ':delayed', item.run_at, number)
    else
      make_ready(item)
    end
    if item.debounce then
      redis.call('ZADD', queue .. ':bounce:' .. workspace .. '/' .. named(item.debounce), 0, number)
    end
  elseif ACTIVE[item.status] then
    redis.call('SADD', queue .. ':used:' .. workspace, number)
    redis.call('SADD', queue .. ':busy:' .. named(item.queue), number)
    redis.call('ZADD', queue .. ':active', 0, number)
  else
    redis.call('ZADD', queue .. ':ended:' .. workspace, item.finished, number)
    if item.status ~= 'COMPLETED' then
      redis.call('ZADD', queue .. ':dead', 0, number)
    end
  end
end

-- The opposite.
local function leave(item)
  local number, workspace = item.number, named(item.workspace)
  if item.status == 'QUEUED' then
    leave_ready(item)
    redis.call('ZREM', queue .. ':delayed', number)
    redis.call('ZREM', queue .. ':waiting:' .. line_of(item), number)
    if item.debounce then
      redis.call('ZREM', queue .. ':bounce:' .. workspace .. '/' .. named(item.debounce), number)
    end
  elseif ACTIVE[item.status] then
    redis.call('SREM', queue .. ':used:' .. workspace, number)
    redis.call('SREM', queue .. ':busy:' .. named(item.queue), number)
    redis.call('ZREM', queue .. ':active', number)
    if item.status == 'CLAIMED' then
      redis.call('ZREM', queue .. ':claims', number)
    end
  else
    redis.call('ZREM', queue .. ':ended:' .. workspace, number)
    redis.call('ZREM', queue .. ':dead', number)
  end
end

-- The names that stand for an item do so for as long as it has not ended. Before it is DISPATCHED, its execution may be another's.
local function give_up_names(item)
  if item.status == 'DISPATCHED' then
    redis.call('HDEL', queue .. ':executions', item.execution)
  end
  if item.singleton then
    redis.call('HDEL', queue .. ':singles:' .. named(item.workspace), item.singleton)
  end
end

-- Writes fields of an item; false takes one away.
local function set_fields(item, changes)
  local set, unset = {}, {}
  for field, value in pairs(changes) do
    item[field] = value or nil
    if value then
      set[#set + 1] = field
      set[#set + 1] = value
    else
      unset[#unset + 1] = field
    end
  end
  redis.call('HSET', queue .. ':item:' .. item.number, unpack(set))
  if #unset > 0 then
    redis.call('HDEL', queue .. ':item:' .. item.number, unpack(unset))
  end
end

-- Changes an item, and where it is found.
local function move(item, changes, now)
  if ACTIVE[item.status] and ACTIVE[changes.status] then
    redis.call('ZREM', queue .. ':claims', item.number)
    return set_fields(item, changes)
  end
  leave(item)
  if not ENDED[item.status] and ENDED[changes.status] then
    give_up_names(item)
  end
  set_fields(item, changes)
  join(item, now)
end

local function end_item(item, status, error, now)
  local changes = {status = status, finished = now, error = error}
  if item.status == 'CLAIMED' then
    changes['until'] = false
  end
  if item.error and not error then
    changes.error = false
  end
  move(item, changes, now)
end

-- Wakes the dispatchers if a slot that came free, or a change of limits, can matter to anything.
local function tell_of_room(channel)
  if redis.call('EXISTS', queue .. ':ready', queue .. ':delayed') > 0 then
    redis.call('PUBLISH', channel, '')
  end
end
