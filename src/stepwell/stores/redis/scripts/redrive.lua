-- redrive.lua: makes a FAILED or CANCELLED item wait again, with no attempts used and a new execution.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for the queue  4 item id  5 execution id
-- Gives {'ok', item}, 'no_item', {'alive', status}, {'single', name} (another of its singleton name has not ended) or 'lost'.
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
local item = item_with(ARGV[4])
if not item then
  return 'no_item'
end
local refusal = unrevived(item)
if refusal then
  return refusal
end
revive(item, ARGV[5], now, ARGV[3])
return {'ok', whole(item.number)}
