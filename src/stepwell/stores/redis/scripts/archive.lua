-- archive.lua: drops the commits up to a snapshot's revision and makes the snapshot the start of the chain; never one that is
-- behind the present start or ahead of the head. Ids that users chose stay, so that a very late retry is recognised.
-- KEYS  head, commits, ids, snapshots; store
-- ARGV  1 store's id  2 revision  3 snapshot  4 TTL in ms or '0'
-- Gives 'ok', 'missing', 'torn' or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include sliding_ttl.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'revision', 'base')
local through = tonumber(ARGV[2])
if not head[1] or tonumber(head[2]) > through or tonumber(head[1]) < through then
  return 'missing'
end
if redis.call('LLEN', KEYS[2]) ~= head[1] - head[2] then
  return 'torn'
end

redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', through)
redis.call('ZADD', KEYS[4], through, ARGV[3])
redis.call('LTRIM', KEYS[2], through - head[2], -1)
redis.call('HSET', KEYS[1], 'base', through)
keep(KEYS, ARGV[4])
return 'ok'
