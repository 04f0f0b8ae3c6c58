-- drop_items.lua: drops items of workspaces that ended with one of some statuses so long ago or before, the first to end first.
-- KEYS  store, queue
-- ARGV  1 store's id  2 packed list of workspaces, encoded  3 packed list of statuses  4 how long ago in ms  5 most
--       6 milliseconds that the clock is ahead
-- Gives {'ok', how many were dropped} or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local queue, latest = KEYS[2], now_ms(ARGV[6]) - ARGV[4]
--@include items.lua
local function drop(item, workspace)
  local number = item.number
  leave(item)
  redis.call('HDEL', queue .. ':ids', item.id)
  if item.key then
    redis.call('HDEL', queue .. ':keys:' .. workspace, item.key)
  end
  redis.call('ZREM', queue .. ':all', number)
  redis.call('ZREM', queue .. ':of:' .. workspace, number)
  redis.call('UNLINK', queue .. ':item:' .. number)
end

-- A workspace without any item has no queues, either.
local function forget_queues(workspace)
  if redis.call('EXISTS', queue .. ':of:' .. workspace) == 0 then
    for _, name in ipairs(redis.call('SMEMBERS', queue .. ':queues:' .. workspace)) do
      redis.call('UNLINK', queue .. ':waits:' .. workspace .. '/' .. name)
    end
    redis.call('UNLINK', queue .. ':queues:' .. workspace)
  end
end

local statuses = {}
for _, status in ipairs(cmsgpack.unpack(ARGV[3])) do
  statuses[status] = true
end

-- Items with another status stay where they are in the sorted set: the next page begins behind them.
local function drop_old(workspace, most)
  local ended, dropped, kept, page = queue .. ':ended:' .. workspace, 0, 0, {}
  repeat
    page = redis.call('ZRANGEBYSCORE', ended, '-inf', latest, 'LIMIT', kept, most - dropped)
    for _, number in ipairs(page) do
      local item = item_at(number)
      if not item then
        redis.call('ZREM', ended, number)
      elseif statuses[item.status] then
        drop(item, workspace)
        dropped = dropped + 1
      else
        kept = kept + 1
      end
    end
  until #page == 0 or dropped >= most
  if dropped > 0 then
    forget_queues(workspace)
  end
  return dropped
end

local left = tonumber(ARGV[5])
for _, workspace in ipairs(cmsgpack.unpack(ARGV[2])) do
  if left > 0 then
    left = left - drop_old(workspace, left)
  end
end
return {'ok', ARGV[5] - left}
