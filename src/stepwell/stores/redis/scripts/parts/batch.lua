-- batch.lua: commands that add or remove members, gathered by key: many members go in one command.
local gathered, gathered_keys = {}, {}

local function later(command, key, ...)
  local id = command .. ' ' .. key
  local batch = gathered[id]
  if not batch then
    batch = {command, key, {}}
    gathered[id] = batch
    gathered_keys[#gathered_keys + 1] = id
  end
  local members = batch[3]
  for i = 1, select('#', ...) do
    members[#members + 1] = (select(i, ...))
  end
end

-- 4,000 is half of what Lua can unpack at once, and even, so that no pair is torn.
local function flush()
  for _, id in ipairs(gathered_keys) do
    local command, key, members = unpack(gathered[id])
    for first = 1, #members, 4000 do
      redis.call(command, key, unpack(members, first, math.min(first + 3999, #members)))
    end
  end
  gathered, gathered_keys = {}, {}
end
