-- cancel_item.lua: cancels an item that is QUEUED or CLAIMED; any other stays as it is.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for the queue  4 item id
-- Gives {'ok', item}, 'no_item' or 'lost'.
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
if item.status == 'QUEUED' or item.status == 'CLAIMED' then
  end_item(item, 'CANCELLED', item.error, now)
  tell_of_room(ARGV[3])
end
return {'ok', whole(item.number)}
