-- drop_lock.lua: drops a lock that ended before a time, and its index entry; leaves any other as it is.
-- KEYS  lock, locks
-- ARGV  1 name  2 latest end of a lock to drop
-- Gives 'ok'.
local ends = redis.call('HGET', KEYS[1], 'until')
if not ends or tonumber(ends) <= tonumber(ARGV[2]) then
  redis.call('UNLINK', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return 'ok'
