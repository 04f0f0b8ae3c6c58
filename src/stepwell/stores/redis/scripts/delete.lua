-- delete.lua: removes an execution with its history and leaves a tombstone, so that its id is never used again.
-- If the queue item that started it has not ended, the item is CANCELLED. An item that only names the same id keeps waiting.
-- KEYS  head, commits, ids, snapshots; store, executions, due, queue
-- ARGV  1 store's id  2 execution id  3 milliseconds that the clock is ahead  4 TTL in ms or '0'  5 channel for the queue
--       6 digest of the newest receipt, or '' for any
-- Gives 'ok', 'missing', 'newer' (its newest receipt is another) or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include execution_index.lua
--@include sliding_ttl.lua
--@include due.lua
local queue = KEYS[8]
--@include items.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'revision', 'created', 'workspace', 'status', 'workflow', 'digest')
if not head[1] then
  return 'missing'
end
if ARGV[6] ~= '' and ARGV[6] ~= head[6] then
  return 'newer'
end

redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('HSET', KEYS[1], 'deleted', digits(now_ms(ARGV[3])))
keep(KEYS, ARGV[4])
redis.call('ZREM', KEYS[6], places(ARGV[2], head[2], head[3], head[4]))
redis.call('ZREM', due_of(KEYS[7], head[5]), ARGV[2])
local item = item_at(redis.call('HGET', queue .. ':executions', ARGV[2]))
if item and item.status == 'DISPATCHED' then
  end_item(item, 'CANCELLED', item.error, now_ms(ARGV[3]))
  tell_of_room(ARGV[5])
end
return 'ok'
