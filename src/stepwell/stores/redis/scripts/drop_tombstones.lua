-- drop_tombstones.lua: drops tombstones of a scope that are older than a time. A scope with nothing left but its totals leaves the index,
-- and expires when nothing was written to it for a long time.
-- KEYS  store; the scope's rows, revisions, tombs; the indexes scopes, tombs
-- ARGV  1 store's id  2 path  3 place by workspace  4 time of the youngest tombstone to drop  5 most to drop
--       6 how long to remember an empty scope, in ms
-- Gives 'ok' or 'lost'.
--@include store_id.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', ARGV[4], 'LIMIT', 0, ARGV[5])) do
  redis.call('HDEL', KEYS[2], name)
  redis.call('ZREM', KEYS[3], name)
  redis.call('ZREM', KEYS[4], name)
end
local first = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
if first[2] then
  redis.call('ZADD', KEYS[6], first[2], ARGV[2])
else
  redis.call('ZREM', KEYS[6], ARGV[2])
end
if redis.call('HLEN', KEYS[2]) == 1 then
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
  redis.call('ZREM', KEYS[5], 'a/' .. ARGV[2], ARGV[3])
end
return 'ok'
