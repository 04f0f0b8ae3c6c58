-- put_queue.lua: sets up a named queue, or changes it.
-- KEYS  store, queue
-- ARGV  1 store's id  2 channel for the queue  3 name, encoded  4 packed settings (see rows.py)
--       5 milliseconds that the clock is ahead  6 what the change is based on (see unchanged_row.lua)
-- Gives 'ok', 'changed' or 'lost'.
--@include time.lua
--@include group_order.lua
--@include store_id.lua
--@include rates.lua
--@include unchanged_row.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
if has_changed(redis.call('HGET', KEYS[2] .. ':queues', ARGV[3]), ARGV[6]) then
  return 'changed'
end
redis.call('HSET', KEYS[2] .. ':queues', ARGV[3], ARGV[4])
change_rate(KEYS[2] .. ':queue_rates', ARGV[3], cmsgpack.unpack(ARGV[4])[3], now_ms(ARGV[5]))
redis.call('PUBLISH', ARGV[2], '')
return 'ok'
