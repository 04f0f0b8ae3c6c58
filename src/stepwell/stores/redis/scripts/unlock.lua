-- unlock.lua: releases a lock for its holder, and wakes waiting callers. Until `at least` after it was acquired, the lock stays
-- taken without a holder.
-- KEYS  lock; locks
-- ARGV  1 holder  2 fence  3 at least, in ms  4 milliseconds that the clock is ahead  5 channel for locks  6 name
-- Gives 'ok' or 'fence'.
--@include group_order.lua
--@include time.lua
local lock = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'acquired', 'until')
local now = now_ms(ARGV[4])
if lock[1] ~= ARGV[1] or lock[2] ~= ARGV[2] or tonumber(lock[4]) <= now then
  return 'fence'
end

local ends = lock[3] + ARGV[3]
if ends > now then
  redis.call('HSET', KEYS[1], 'holder', '', 'until', digits(ends))
  redis.call('PEXPIRE', KEYS[1], digits(ends - now))
else
  redis.call('UNLINK', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[6])
end
redis.call('PUBLISH', ARGV[5], '')
return 'ok'
