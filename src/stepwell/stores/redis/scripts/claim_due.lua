-- claim_due.lua: leases executions that are due, the longest due first, each with a fence higher than any before; never one that is
-- leased, nor one of a workflow or a version that was not asked for. The names of the heads are built here.
-- KEYS  store, due
-- ARGV  1 store's id  2 prefix of every key  3 holder  4 milliseconds  5 milliseconds that the clock is ahead
--       6 TTL in ms or '0'  7 most to lease  8 number of workflows, each of them, the newest version of each
-- Gives {'ok', end, id, fence, id, fence, ...} or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local now, limit = now_ms(ARGV[5]), tonumber(ARGV[7])
local ends, leases = now + ARGV[4], {'ok', now + ARGV[4]}

-- The number of entries passed over in each workflow's list. Leased entries leave the list, so these are its first ones.
local passed = {}

local function candidates()
  local found = {}
  for i = 1, tonumber(ARGV[8]) do
    local page = redis.call('ZRANGEBYSCORE', due_of(KEYS[2], ARGV[8 + i]), '-inf', now, 'WITHSCORES', 'LIMIT', passed[ARGV[8 + i]] or 0,
      limit)
    for at = 1, #page, 2 do
      found[#found + 1] = {page[at], tonumber(page[at + 1]), ARGV[8 + i], tonumber(ARGV[8 + ARGV[8] + i])}
    end
  end
  table.sort(found, function(a, b)
    return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1])
  end)
  return found
end

local function lease(id, workflow, newest)
  local name = ARGV[2] .. ':execution:' .. encoded(id) .. ':'
  local head = redis.call('HMGET', name .. 'head', 'fence', 'wake', 'holder', 'until', 'version')
  if not head[2] then
    -- Its TTL ended: what is left of it is this entry.
    redis.call('ZREM', due_of(KEYS[2], workflow), id)
    return true
  end
  if tonumber(head[5]) > newest then
    passed[workflow] = (passed[workflow] or 0) + 1
    return true
  end
  local fence = digits(next_fence(head[1]))
  redis.call('HSET', name .. 'head', 'fence', fence, 'holder', ARGV[3], 'until', digits(ends))
  redis.call('HINCRBY', name .. 'head', 'claims', 1)
  redis.call('HDEL', name .. 'head', 'nudged')
  wake_at(name .. 'head', KEYS[2], id, workflow, ends)
  if ARGV[6] ~= '0' then
    for _, part in ipairs({'head', 'commits', 'ids', 'snapshots'}) do
      redis.call('PEXPIRE', name .. part, ARGV[6])
    end
  end
  leases[#leases + 1] = id
  leases[#leases + 1] = tonumber(fence)
end

repeat
  local is_unfinished = false
  for _, each in ipairs(candidates()) do
    if #leases >= 2 + 2 * limit then
      return leases
    end
    is_unfinished = lease(each[1], each[3], each[4]) or is_unfinished
  end
until not is_unfinished
return leases
