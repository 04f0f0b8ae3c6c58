-- acquire.lua: grants a lock that is free or expired, with a fence higher than any before. A holder that asks again, because its first
-- reply was lost, gets the fence that it has. The lock's key expires after its end plus the grace that late guards need.
-- KEYS  lock, last fence; locks
-- ARGV  1 holder  2 milliseconds  3 milliseconds that the clock is ahead  4 grace in ms  5 name
-- Gives {'ok', fence, end} or {'held', end}.
--@include group_order.lua
--@include time.lua
local lock = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'acquired', 'until')
local now = now_ms(ARGV[3])
local is_held = lock[1] and tonumber(lock[4]) > now
if is_held and lock[1] ~= ARGV[1] then
  return {'held', tonumber(lock[4])}
end

local fence, acquired, ends = tonumber(lock[2]), lock[3], now + ARGV[2]
if not is_held then
  fence, acquired = next_fence(redis.call('GET', KEYS[2])), digits(now)
  redis.call('SET', KEYS[2], digits(fence))
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'fence', digits(fence), 'acquired', acquired, 'until', digits(ends))
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[4])
redis.call('ZADD', KEYS[3], digits(ends), ARGV[5])
return {'ok', fence, ends}
