-- renew.lua: prolongs a lock that is still held; one that ended or was taken stays as it is.
-- KEYS  lock; locks
-- ARGV  1 holder  2 fence  3 milliseconds  4 milliseconds that the clock is ahead  5 grace in ms  6 name
-- Gives {'ok', end} or 'fence'.
--@include group_order.lua
--@include time.lua
local lock = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'until')
local now = now_ms(ARGV[4])
if lock[1] ~= ARGV[1] or lock[2] ~= ARGV[2] or tonumber(lock[3]) <= now then
  return 'fence'
end

local ends = now + ARGV[3]
redis.call('HSET', KEYS[1], 'until', digits(ends))
redis.call('PEXPIRE', KEYS[1], ARGV[3] + ARGV[5])
redis.call('ZADD', KEYS[2], digits(ends), ARGV[6])
return {'ok', ends}
