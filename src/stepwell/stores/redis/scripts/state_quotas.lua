-- state_quotas.lua: reads the limits of owners of scoped state (workspaces, and workflows in them), and counts what they have.
-- KEYS  queue, counts, scopes
-- ARGV  1 milliseconds that the clock is ahead  2 prefix of all keys
--       3... three for each owner: workspace and workflow, encoded ('': the whole workspace), and its workspace's place in scopes
-- Gives four for each owner: the bytes and keys that its tier allows ('' for no limit), and those that it has ('' without a limit).
--@include time.lua
--@include due.lua
local queue, now = KEYS[1], now_ms(ARGV[1])
--@include tiers.lua

local function is_of(path, workspace, workflow)
  local of_step = 'step/' .. workspace .. '/' .. workflow .. '/'
  return workflow == '' or path == 'workflow/' .. workspace .. '/' .. workflow or string.sub(path, 1, #of_step) == of_step
end

-- Counts what an owner has, in one script with no writer between; from now on its writers keep the count.
local function count(name, workspace, workflow, place)
  local bytes, keys = 0, 0
  for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], '[' .. place, '(' .. place .. '\255')) do
    local path = string.sub(member, #place + 1)
    if is_of(path, workspace, workflow) then
      local totals = redis.call('HGET', ARGV[2] .. ':scope:' .. encoded(path) .. ':rows', '')
      local more, size = string.match(totals or '', '^%d+ %d+ (%d+) (%d+)$')
      bytes, keys = bytes + (size or 0), keys + (more or 0)
    end
  end
  redis.call('HSET', KEYS[2], name .. ' bytes', string.format('%.0f', bytes), name .. ' keys', string.format('%.0f', keys))
end

local function shown(most)
  return most and string.format('%.0f', most) or ''
end

local rooms = {}
for at = 3, #ARGV, 3 do
  local workspace, workflow = ARGV[at], ARGV[at + 1]
  local name = workflow == '' and workspace or workspace .. '/' .. workflow
  local row = redis.call('HGET', queue .. ':workspaces', workspace)
  local limits = row and limits_of(cmsgpack.unpack(row)) or {}
  local most_bytes, most_keys = limits[5], limits[8]
  if workflow ~= '' then
    most_bytes, most_keys = limits[9], limits[10]
  end
  local held = {'', ''}
  if most_bytes or most_keys then
    if redis.call('HEXISTS', KEYS[2], name .. ' bytes') == 0 then
      count(name, workspace, workflow, ARGV[at + 2])
    end
    held = redis.call('HMGET', KEYS[2], name .. ' bytes', name .. ' keys')
  end
  for _, number in ipairs({shown(most_bytes), shown(most_keys), held[1], held[2]}) do
    rooms[#rooms + 1] = number
  end
end
return rooms
