-- put_workspace.lua: makes a workspace or changes it; its creation time stays.
-- KEYS  store, queue
-- ARGV  1 store's id  2 channel for the queue  3 name, encoded  4 tier  5 whether it is paused: '1' or '0'
--       6 milliseconds that the clock is ahead  7 what the change is based on (see unchanged_row.lua)  8 overrides (see tiers.lua)
-- Gives 'ok', {'tier', name, ...} (there are only these), 'changed' or 'lost'.
--@include time.lua
--@include group_order.lua
--@include store_id.lua
--@include rates.lua
--@include unchanged_row.lua
local queue, now = KEYS[2], now_ms(ARGV[6])
--@include tiers.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
if redis.call('HEXISTS', KEYS[2] .. ':tiers', ARGV[4]) == 0 then
  return {'tier', unpack(redis.call('HKEYS', KEYS[2] .. ':tiers'))}
end
local before = redis.call('HGET', KEYS[2] .. ':workspaces', ARGV[3])
if has_changed(before, ARGV[7]) then
  return 'changed'
end
local created = before and cmsgpack.unpack(before)[3] or now
redis.call('HSET', KEYS[2] .. ':workspaces', ARGV[3], cmsgpack.pack({ARGV[4], ARGV[5] == '1', created, ARGV[8]}))
change_rate(KEYS[2] .. ':rates', ARGV[3], limits_of({ARGV[4], false, created, ARGV[8]})[3], now)
redis.call('PUBLISH', ARGV[2], '')
return 'ok'
