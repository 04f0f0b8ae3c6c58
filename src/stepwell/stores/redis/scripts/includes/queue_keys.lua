-- queue_keys.lua: encodes names for the queue's keys, and names the lane that an item waits in. Needs due.lua (encoded) and `queue`.
local known_names = {}
local function named(text)
  local name = known_names[text]
  if not name then
    name = encoded(text)
    known_names[text] = name
  end
  return name
end

local function line_of(item)
  return named(item.workspace) .. '/' .. named(item.queue)
end

local function lane_of(item)
  return line_of(item) .. '/' .. named(item.workflow)
end

local function make_ready(item)
  local lane = lane_of(item)
  redis.call('ZADD', queue .. ':ready:' .. lane, -item.priority, item.number)
  redis.call('SADD', queue .. ':ready', lane)
end
