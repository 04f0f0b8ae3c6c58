-- release.lua: frees a lease, only for its holder; the fence stays, so that the next one is higher. Workers may claim it at once.
-- KEYS  head; store, due
-- ARGV  1 store's id  2 execution id  3 holder  4 fence  5 milliseconds that the clock is ahead  6 channel for what is due
-- Gives 'ok', 'fence' or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[2]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'wake', 'workflow')
if head[1] ~= ARGV[3] or head[2] ~= ARGV[4] then
  return 'fence'
end

redis.call('HDEL', KEYS[1], 'holder', 'until')
if head[3] then
  wake_at(KEYS[1], KEYS[3], ARGV[2], head[4], now_ms(ARGV[5]))
  redis.call('PUBLISH', ARGV[6], '')
end
return 'ok'
