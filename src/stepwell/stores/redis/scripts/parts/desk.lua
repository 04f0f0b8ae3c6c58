-- desk.lua: what requests for items come to, by the rules of model.admission: first all of them are decided, then all are written,
-- since Redis takes nothing back. Needs items.lua and tiers.lua. A request is a list:
--   1 item id  2 workspace  3 workflow  4 version  5 execution  6 input  7 queue  8 priority  9 delay in ms  10 digest of the body
--   11 most attempts  12 when to run or nil  13 key or nil  14 singleton or nil  15 debounce name or nil
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
    local depth = row and tier_of(cmsgpack.unpack(row)[1])[4]
    rooms[workspace] = row and (depth and depth - pending_in(workspace) or math.huge)
  end
  return rooms[workspace]
end

-- What is there by a name: an item that an earlier request of this call will make, or a stored one.
local coming = {}
local function by_name(kind, workspace, name)
  return coming[kind .. ':' .. workspace .. '/' .. name] or item_at(redis.call('HGET', queue .. ':' .. kind .. ':' .. workspace, name))
end

local function bouncing(workspace, name)
  local key = ':bounce:' .. workspace .. '/' .. named(name)
  return coming[key] or item_at(redis.call('ZREVRANGE', queue .. key, 0, 0)[1])
end

local function note_coming(item, workspace)
  coming['id ' .. item.id] = item
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
  local room = room_in(workspace)
  if not room then
    return {'workspace'}
  end
  local found = coming['id ' .. new[1]] or item_at(number) or (new[13] and by_name('keys', workspace, new[13]))
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
  if room < 1 then
    return {'full'}
  end
  rooms[workspace] = room - 1
  local item = {id = new[1], workspace = new[2], workflow = new[3], version = new[4], execution = new[5], input = new[6],
    queue = new[7], priority = new[8], digest = new[10], most = new[11], run_at = run_at, key = new[13], singleton = new[14],
    debounce = new[15], status = 'PENDING', enqueued = now}
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

local function enter(item, now)
  local number, workspace = item.number, named(item.workspace)
  local fields = {'id', item.id, 'number', number, 'workspace', item.workspace, 'workflow', item.workflow, 'version', item.version, 'execution',
    item.execution, 'input', item.input, 'queue', item.queue, 'status', 'PENDING', 'priority', item.priority, 'enqueued', now,
    'run_at', item.run_at, 'digest', item.digest, 'most', item.most, 'attempts', '0', 'fence', '0'}
  for _, field in ipairs({'key', 'singleton', 'debounce'}) do
    if item[field] then
      fields[#fields + 1] = field
      fields[#fields + 1] = item[field]
    end
  end
  redis.call('HSET', queue .. ':item:' .. number, unpack(fields))
  later('HSET', queue .. ':ids', item.id, number)
  later('ZADD', queue .. ':all', 0, number)
  later('ZADD', queue .. ':of:' .. workspace, 0, number)
  later('SADD', queue .. ':queues:' .. workspace, named(item.queue))
  if item.key then
    later('HSET', queue .. ':keys:' .. workspace, item.key, number)
  end
  hold_names(item)
  join(item, now)
end

local function write_items(plan, now, channel)
  if #plan.items > 0 then
    local last = redis.call('INCRBY', queue .. ':number', #plan.items)
    for i, item in ipairs(plan.items) do
      item.number = string.format('%016.0f', last - #plan.items + i)
      enter(item, now)
    end
    flush()
  end
  for _, change in ipairs(plan.changes) do
    local item = item_at(change[1])
    leave(item)
    set_fields(item, change[2])
    join(item, now)
    flush()
  end
  if #plan.items + #plan.changes > 0 then
    redis.call('PUBLISH', channel, '')
  end
end
