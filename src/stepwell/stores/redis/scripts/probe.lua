-- probe.lua: runs every command of the other scripts once, on keys of its own, which it removes. A command that the user may not
-- run is found here, before a script stops half-way because of it: Redis takes nothing back.
-- KEYS  1 any that nothing else uses
-- ARGV  1 channel for state  2 channel for locks
-- Gives 'ok'.
local key = KEYS[1]
redis.call('TIME')
redis.call('SET', key, '0')
redis.call('INCR', key)
redis.call('GET', key)
redis.call('PEXPIRE', key, 60000)
redis.call('PERSIST', key)
redis.call('EXISTS', key)
redis.call('UNLINK', key)
redis.call('HSET', key, 'a', '1')
redis.call('HGET', key, 'a')
redis.call('HMGET', key, 'a')
redis.call('HGETALL', key)
redis.call('HLEN', key)
redis.call('HDEL', key, 'a')
redis.call('RPUSH', key, '1')
redis.call('LLEN', key)
redis.call('LINDEX', key, 0)
redis.call('LRANGE', key, 0, -1)
redis.call('LTRIM', key, 1, 0)
redis.call('ZADD', key, 0, 'a')
redis.call('ZSCORE', key, 'a')
redis.call('ZRANGE', key, 0, 0)
redis.call('ZRANGEBYLEX', key, '-', '+')
redis.call('ZRANGEBYSCORE', key, '-inf', '+inf')
redis.call('ZREVRANGEBYSCORE', key, '+inf', '-inf')
redis.call('ZREMRANGEBYSCORE', key, 1, 1)
redis.call('ZREM', key, 'a')
redis.call('PUBLISH', ARGV[1], '')
redis.call('PUBLISH', ARGV[2], '')
return 'ok'
