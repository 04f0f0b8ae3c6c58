-- claim.lua: leases an execution that is free, expired or already the holder's, with a fence higher than any before.
-- KEYS  head, commits, ids, snapshots; store, due
-- ARGV  1 store's id  2 execution id  3 holder  4 milliseconds  5 milliseconds that the clock is ahead  6 TTL in ms or '0'
-- Gives {'ok', fence, end}, {'held', end}, 'missing' or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include sliding_ttl.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'revision', 'fence', 'holder', 'until', 'wake', 'workflow')
if not head[1] then
  return 'missing'
end
local now = now_ms(ARGV[5])
if head[3] and head[3] ~= ARGV[3] and tonumber(head[4]) > now then
  return {'held', tonumber(head[4])}
end

local fence, ends = next_fence(head[2]), now + ARGV[4]
redis.call('HSET', KEYS[1], 'fence', digits(fence), 'holder', ARGV[3], 'until', digits(ends))
redis.call('HINCRBY', KEYS[1], 'claims', 1)
redis.call('HDEL', KEYS[1], 'nudged')
if head[5] then
  wake_at(KEYS[1], KEYS[6], ARGV[2], head[6], ends)
end
keep(KEYS, ARGV[6])
return {'ok', fence, ends}
