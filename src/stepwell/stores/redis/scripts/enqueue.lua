-- enqueue.lua: adds the items that can be added, all at once. A request that an item was made for before is answered with that item.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for the queue  4 packed list of requests (see admission.lua)
-- Gives {'ok', answer, ...}, an answer for each request that is not simply a new item: {which, 'there', id, execution, status},
-- {which, 'workspace'} (unknown), {which, 'full'} or {which, 'other', id} (another body has its id or key); or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local queue, now = KEYS[2], now_ms(ARGV[2])
--@include items.lua
--@include admission.lua
local plan = plan_items(cmsgpack.unpack(ARGV[4]), now)
write_items(plan, now, ARGV[3])
table.insert(plan.answers, 1, 'ok')
return plan.answers
