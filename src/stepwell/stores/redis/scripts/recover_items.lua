-- recover_items.lua: returns items whose claim has expired, the longest expired first: to wait again, or FAILED if that was their
-- last attempt. A live claim is never touched.
-- Where executions have a TTL, the item of an execution that has expired is CANCELLED, so that its slot becomes free.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for the queue  4 most  5 the error of an expired one
--       6 TTL of executions in ms or '0'  7 prefix of every key  8 the error of an item whose execution is gone
-- Gives {'ok', id, ...} or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local queue, now = KEYS[2], now_ms(ARGV[2])
--@include items.lua
--@include requeue.lua
local function recover(item)
  if item.attempts >= item.most then
    end_item(item, 'FAILED', ARGV[5], now)
  else
    make_wait(item, now, item.attempts, ARGV[5], now)
  end
end

local ids = {'ok'}
for _, number in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':claims', '-inf', now, 'LIMIT', 0, ARGV[4])) do
  local item = item_at(number)
  if item then
    recover(item)
    ids[#ids + 1] = item.id
  else
    redis.call('ZREM', queue .. ':claims', number) -- its row is lost: it must not hold up the others
  end
end
if #ids > 1 then
  redis.call('PUBLISH', ARGV[3], '')
end

local function end_orphans()
  for _, number in ipairs(redis.call('ZRANGE', queue .. ':active', 0, -1)) do
    local item = item_at(number)
    if item and item.status == 'DISPATCHED' and redis.call('EXISTS', ARGV[7] .. ':execution:' .. encoded(item.execution) .. ':head') == 0 then
      end_item(item, 'CANCELLED', ARGV[8], now)
      tell_of_room(ARGV[3])
    end
  end
end

if ARGV[6] ~= '0' then
  end_orphans()
end

return ids
