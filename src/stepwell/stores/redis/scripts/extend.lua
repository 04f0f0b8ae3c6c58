-- extend.lua: prolongs a lease that is still held; a lease that ended or was taken stays as it is.
-- KEYS  head, commits, ids, snapshots; store, due
-- ARGV  1 store's id  2 execution id  3 holder  4 fence  5 milliseconds  6 milliseconds that the clock is ahead
--       7 TTL in ms or '0'
-- Gives {'ok', end}, 'fence' or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include sliding_ttl.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'until', 'wake', 'workflow')
local now = now_ms(ARGV[6])
if head[1] ~= ARGV[3] or head[2] ~= ARGV[4] or tonumber(head[3]) <= now then
  return 'fence'
end

local ends = now + ARGV[5]
redis.call('HSET', KEYS[1], 'until', digits(ends))
if head[4] then
  wake_at(KEYS[1], KEYS[6], ARGV[2], head[5], ends)
end
keep(KEYS, ARGV[7])
return {'ok', ends}
