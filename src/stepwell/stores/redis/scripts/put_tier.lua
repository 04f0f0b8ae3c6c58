-- put_tier.lua: makes a tier or changes it; every script that needs its limits reads them anew.
-- KEYS  store, queue
-- ARGV  1 store's id  2 channel for the queue  3 name  4 packed limits (see rows.py)
--       5 milliseconds that the clock is ahead  6 what the change is based on (see unchanged_row.lua)
-- Gives 'ok', 'changed' or 'lost'.
--@include time.lua
--@include group_order.lua
--@include store_id.lua
--@include rates.lua
--@include unchanged_row.lua
local queue, now = KEYS[2], now_ms(ARGV[5])
--@include tiers.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
if has_changed(redis.call('HGET', KEYS[2] .. ':tiers', ARGV[3]), ARGV[6]) then
  return 'changed'
end
redis.call('HSET', KEYS[2] .. ':tiers', ARGV[3], ARGV[4])
for _, workspace in ipairs(redis.call('HKEYS', KEYS[2] .. ':rates')) do
  local row = redis.call('HGET', KEYS[2] .. ':workspaces', workspace)
  row = row and cmsgpack.unpack(row)
  if row and row[1] == ARGV[3] then
    change_rate(KEYS[2] .. ':rates', workspace, limits_of(row)[3], now)
  end
end
redis.call('PUBLISH', ARGV[2], '')
return 'ok'
