-- sweep.lua: drops tombstones of a scope that are older than a time and, on a single server, the scope itself once nothing is
-- left in it. The floor keeps the highest revision of any scope that was dropped, so that no revision comes up twice.
-- KEYS  rows, revisions, tombs; on a single server also store, floor, scopes, tombs
-- ARGV  1 store's id or ''  2 path  3 workspace  4 time of the youngest tombstone to drop  5 most to drop
-- Gives 'ok' or 'lost'.
--@include store.lua
if is_lost(ARGV[1], KEYS[4]) then
  return 'lost'
end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[4], 'LIMIT', 0, ARGV[5])) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
  redis.call('ZREM', KEYS[3], name)
end
if ARGV[1] == '' then
  return 'ok'
end
local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
if first[2] then
  redis.call('ZADD', KEYS[7], first[2], ARGV[2])
else
  redis.call('ZREM', KEYS[7], ARGV[2])
end
local totals = redis.call('HGET', KEYS[1], '')
if totals and redis.call('HLEN', KEYS[1]) == 1 then
  local revision = string.match(totals, '^%d+ (%d+)')
  if tonumber(revision) > tonumber(redis.call('GET', KEYS[5]) or '0') then
    redis.call('SET', KEYS[5], revision)
  end
  redis.call('UNLINK', KEYS[1])
  redis.call('ZREM', KEYS[6], 'a/' .. ARGV[2], 'w/' .. #ARGV[3] .. ':' .. ARGV[3] .. ARGV[2])
end
return 'ok'
