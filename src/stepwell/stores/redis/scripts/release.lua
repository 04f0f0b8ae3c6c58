-- release.lua: frees a lease, only for its holder; the fence stays, so that the next one is higher.
-- KEYS  head; on a single server also store, mark
-- ARGV  1 store's id or ''  2 holder  3 fence
-- Gives 'ok', 'fence' or 'lost'.
--@include order.lua
--@include store.lua
if is_lost(ARGV[1], KEYS[2]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'holder', 'fence')
if head[1] ~= ARGV[2] or head[2] ~= ARGV[3] then
  return 'fence'
end

redis.call('HDEL', KEYS[1], 'holder', 'until')
if ARGV[1] ~= '' then
  redis.call('INCR', KEYS[3])
end
return 'ok'
