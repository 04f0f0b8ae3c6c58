-- mark_item.lua: moves an item to its next status, or makes an ended one wait again. With a fence, only if that is its present
-- claim. An item that has ended stays as it ended.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for the queue  4 packed mark (see item_marks.lua)
-- Gives 'ok', why the mark is refused (see item_marks.lua), or 'lost'.
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
--@include item_marks.lua
local mark = cmsgpack.unpack(ARGV[4])
local refusal, item = plan_mark(mark)
if refusal then
  return refusal
end
if item then
  write_mark(item, mark, now, ARGV[3])
end
return 'ok'
