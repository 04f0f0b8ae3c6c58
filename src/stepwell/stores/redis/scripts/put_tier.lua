-- put_tier.lua: makes a tier or changes it; every script that needs its limits reads them anew.
-- KEYS  store, queue
-- ARGV  1 store's id  2 channel for the queue  3 name  4 packed limits (see queue_rows.py)
-- Gives 'ok' or 'lost'.
--@include order.lua
--@include store.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
redis.call('HSET', KEYS[2] .. ':tiers', ARGV[3], ARGV[4])
redis.call('PUBLISH', ARGV[2], '')
return 'ok'
