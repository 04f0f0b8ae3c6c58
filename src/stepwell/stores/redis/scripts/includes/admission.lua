-- admission.lua: decides requests for queue items by the rules of model.queue_lifecycle, and writes the new items. All requests are decided
-- before any is written, since Redis takes nothing back. Needs items.lua.
-- A request is a list:
--   1 item id  2 workspace  3 workflow  4 version  5 execution  6 input  7 queue  8 priority  9 delay in ms  10 digest of the body
--   11 most attempts  12 when to run or nil  13 key or nil  14 singleton or nil  15 debounce name or nil
--   16 whether its execution is created with it
--@include tiers.lua
--@include batch.lua
local function pending_in(workspace)
  local count = 0
  for _, name in ipairs(redis.call('SMEMBERS', queue .. ':queues:' .. workspace)) do
    count = count + redis.call('ZCARD', queue .. ':waiting:' .. workspace .. '/' .. name)
  end
  return count
end

-- How many more a workspace may have waiting; false if there is no such workspace.
local rooms = {}
local function room_in(workspace)
  if rooms[workspace] == nil then
    local row = redis.call('HGET', queue .. ':workspaces', workspace)
    local depth = row and limits_of(cmsgpack.unpack(row))[4]
    rooms[workspace] = row and (depth and depth - pending_in(workspace) or math.huge)
  end
  return rooms[workspace]
end

-- How many executions a workspace may start now; false if there is no such workspace, and second whether it is paused.
local free = {}
local function slots_in(workspace)
  local row = redis.call('HGET', queue .. ':workspaces', workspace)
  if not row then
    return false
  end
  row = cmsgpack.unpack(row)
  if free[workspace] == nil then
    local most = limits_of(row)[1]
    free[workspace] = most and most - redis.call('SCARD', queue .. ':used:' .. workspace) or math.huge
  end
  return free[workspace], row[2]
end

-- What is there by a name: an item that an earlier request of this call will make, or a stored one.
local coming, coming_ids = {}, {}
local function by_name(kind, workspace, name)
  return coming[kind .. ':' .. workspace .. '/' .. name] or item_at(redis.call('HGET', queue .. ':' .. kind .. ':' .. workspace, name))
end

local function bouncing(workspace, name)
  local key = ':bounce:' .. workspace .. '/' .. named(name)
  return coming[key] or item_at(redis.call('ZREVRANGE', queue .. key, 0, 0)[1])
end

-- Whether an item of this call has the singleton name of another one, which has ended.
local function is_coming_single(item)
  return item.singleton and coming['singles:' .. named(item.workspace) .. '/' .. item.singleton]
end

local function note_coming(item, workspace)
  coming_ids[item.id] = item
  if item.key then
    coming['keys:' .. workspace .. '/' .. item.key] = item
  end
  if item.singleton then
    coming['singles:' .. workspace .. '/' .. item.singleton] = item
  end
  if item.debounce then
    coming[':bounce:' .. workspace .. '/' .. named(item.debounce)] = item
  end
end

local function there(item)
  return {'there', item.id, item.execution, item.status}
end

local function admit(new, number, plan, now)
  local workspace = named(new[2])
  local room, is_paused
  if new[16] then
    room, is_paused = slots_in(workspace)
  else
    room = room_in(workspace)
  end
  if not room then
    return {'workspace'}
  end
  local found = coming_ids[new[1]] or item_at(number) or (new[13] and by_name('keys', workspace, new[13]))
  if found then
    return (found.workspace == new[2] and found.digest == new[10]) and there(found) or {'other', found.id}
  end
  found = new[14] and by_name('singles', workspace, new[14])
  if found then
    return there(found)
  end
  local run_at = new[12] or now + new[9]
  found = new[15] and bouncing(workspace, new[15])
  if found then
    if found.number then
      plan.changes[#plan.changes + 1] = {found.number, {workflow = new[3], version = new[4], input = new[6], run_at = run_at}}
    else
      found.workflow, found.version, found.input, found.run_at = new[3], new[4], new[6], run_at
    end
    return there(found)
  end
  if new[16] then
    if is_paused or room < 1 then
      return {is_paused and 'paused' or 'used'}
    end
    free[workspace] = room - 1
  elseif room < 1 then
    return {'full'}
  else
    rooms[workspace] = room - 1
  end
  local item = {id = new[1], workspace = new[2], workflow = new[3], version = new[4], execution = new[5], input = new[6],
    queue = new[7], priority = new[8], digest = new[10], most = new[11], run_at = run_at, key = new[13], singleton = new[14],
    debounce = new[15], status = new[16] and 'DISPATCHED' or 'QUEUED', enqueued = now}
  note_coming(item, workspace)
  plan.items[#plan.items + 1] = item
end

-- The numbers of those whose ids are there already.
local function numbers_of(news)
  local numbers = {}
  for first = 1, #news, 4000 do
    local ids = {}
    for i = first, math.min(first + 3999, #news) do
      ids[#ids + 1] = news[i][1]
    end
    for i, number in ipairs(redis.call('HMGET', queue .. ':ids', unpack(ids))) do
      numbers[first + i - 1] = number
    end
  end
  return numbers
end

-- What all requests come to. `answers` has only what is not simply new: {which, word, ...}.
local function plan_items(news, now)
  local plan, numbers = {items = {}, changes = {}, answers = {}}, numbers_of(news)
  for i, new in ipairs(news) do
    local answer = admit(new, numbers[i], plan, now)
    if answer then
      plan.answers[#plan.answers + 1] = {i, unpack(answer)}
    end
  end
  return plan
end

-- An entry of a table of tables, made if it is not there.
local function inside(table, name)
  local entry = table[name]
  if not entry then
    entry = {}
    table[name] = entry
  end
  return entry
end

-- What the items of one lane are added to, all at once.
local known_spots = {}
local function spot_of(item)
  local spot = inside(inside(inside(known_spots, item.workspace), item.queue), item.workflow)
  if not spot.all then
    local workspace, lane = named(item.workspace), lane_of(item)
    spot.all, spot.of = gather('ZADD', queue .. ':all'), gather('ZADD', queue .. ':of:' .. workspace)
    spot.ids = gather('HSET', queue .. ':ids')
    spot.waiting, spot.ready = gather('ZADD', queue .. ':waiting:' .. line_of(item)), gather('ZADD', queue .. ':ready:' .. lane)
    later('SADD', queue .. ':queues:' .. workspace, named(item.queue))
    spot.lane = lane
  end
  return spot
end

local function append(list, first, second)
  local size = #list
  list[size + 1], list[size + 2] = first, second
end

local function enter(item, now)
  local number, spot = item.number, spot_of(item)
  -- What is asked for most often stands first: a small hash is a list.
  local fields = {'status', item.status, 'workspace', item.workspace, 'queue', item.queue, 'execution', item.execution, 'id', item.id,
    'workflow', item.workflow, 'version', item.version, 'enqueued', now, 'run_at', item.run_at, 'most', item.most, 'digest',
    item.digest, 'input', item.input}
  if item.priority ~= 0 then
    append(fields, 'priority', item.priority)
  end
  append(spot.ids, item.id, number)
  append(spot.all, 0, number)
  append(spot.of, 0, number)
  if item.status == 'DISPATCHED' then
    for _, field in ipairs({'claimed', 'dispatched'}) do
      append(fields, field, now)
    end
    append(fields, 'attempts', 1)
    append(fields, 'fence', 1)
    later('HSET', queue .. ':executions', item.execution, number)
    later('SADD', queue .. ':used:' .. named(item.workspace), number)
    later('SADD', queue .. ':busy:' .. named(item.queue), number)
    later('ZADD', queue .. ':active', 0, number)
  else
    append(spot.waiting, ready_since(item), number)
  end
  if item.status == 'DISPATCHED' then
    -- It waits for nothing.
  elseif item.run_at > now then
    later('ZADD', queue .. ':delayed', item.run_at, number)
  else
    append(spot.ready, -item.priority, number)
  end
  if item.key or item.singleton or item.debounce then
    local workspace = named(item.workspace)
    if item.key then
      append(fields, 'key', item.key)
      later('HSET', queue .. ':keys:' .. workspace, item.key, number)
    end
    if item.singleton then
      append(fields, 'singleton', item.singleton)
      later('HSET', queue .. ':singles:' .. workspace, item.singleton, number)
    end
    if item.debounce then
      append(fields, 'debounce', item.debounce)
      later('ZADD', queue .. ':bounce:' .. workspace .. '/' .. named(item.debounce), 0, number)
    end
  end
  redis.call('HSET', queue .. ':item:' .. number, unpack(fields))
end

-- A lane that has something ready now is among those that claims look at.
local function note_lanes()
  for _, queues in pairs(known_spots) do
    for _, workflows in pairs(queues) do
      for _, spot in pairs(workflows) do
        if #spot.ready > 0 then
          later('SADD', queue .. ':ready', spot.lane)
        end
      end
    end
  end
end

local function write_items(plan, now, channel)
  if #plan.items > 0 then
    local last = redis.call('INCRBY', queue .. ':number', #plan.items)
    for i, item in ipairs(plan.items) do
      item.number = string.format('%016.0f', last - #plan.items + i)
      enter(item, now)
    end
    note_lanes()
    flush()
  end
  for _, change in ipairs(plan.changes) do
    local item = item_at(change[1])
    leave(item)
    set_fields(item, change[2])
    join(item, now)
  end
  if #plan.items + #plan.changes > 0 then
    redis.call('PUBLISH', channel, '')
  end
end
