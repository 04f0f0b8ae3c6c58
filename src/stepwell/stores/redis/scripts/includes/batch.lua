-- batch.lua: gathers members that are added or removed, so that one command handles many members of a key.
local gathered, gathered_lists = {}, {}

-- The list of members that a command will have for a key; callers that add many keep it until the next flush.
local function gather(command, key)
  local lists = gathered[command]
  if not lists then
    lists = {}
    gathered[command] = lists
  end
  if not lists[key] then
    lists[key] = {}
    gathered_lists[#gathered_lists + 1] = {command, key, lists[key]}
  end
  return lists[key]
end

local function later(command, key, first, second)
  local members = gather(command, key)
  members[#members + 1] = first
  members[#members + 1] = second
end

-- 4,000 is half of what Lua can unpack at once, and even, so that no pair is torn.
local function flush()
  for _, each in ipairs(gathered_lists) do
    local members = each[3]
    for first = 1, #members, 4000 do
      redis.call(each[1], each[2], unpack(members, first, math.min(first + 3999, #members)))
    end
  end
  gathered, gathered_lists = {}, {}
end
