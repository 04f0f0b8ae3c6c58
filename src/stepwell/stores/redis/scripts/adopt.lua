-- adopt.lua: takes in an execution whose chain begins with a snapshot, unless its id was ever used: all of it, or nothing.
-- KEYS  head, commits, ids, snapshots; store, executions
-- ARGV  1 store's id  2 execution id  3 revision  4 digest  5 snapshot  6 time  7 status  8 signature or ''
--       9 TTL in ms or '0'  10 workspace  11 workflow  12 version  13 parent or ''
-- Gives 'ok', 'exists', 'torn' or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include execution_index.lua
--@include sliding_ttl.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 'exists'
end
if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then
  return 'torn'
end

redis.call('ZADD', KEYS[4], ARGV[3], ARGV[5])
redis.call('HSET', KEYS[1], 'workspace', ARGV[10], 'workflow', ARGV[11], 'version', ARGV[12], 'parent', ARGV[13], 'status', ARGV[7],
  'revision', ARGV[3], 'digest', ARGV[4], 'signature', ARGV[8], 'fence', '0', 'base', ARGV[3], 'created', ARGV[6], 'updated', ARGV[6])
keep(KEYS, ARGV[9])
local by_age, by_workspace, by_status = places(ARGV[2], ARGV[6], ARGV[10], ARGV[7])
redis.call('ZADD', KEYS[6], 0, by_age, 0, by_workspace, 0, by_status)
return 'ok'
