-- item.lua: a queue item as it is now.
-- KEYS  queue
-- ARGV  1 item id
-- Gives its fields and values, none if there is no such item.
local number = redis.call('HGET', KEYS[1] .. ':ids', ARGV[1])
return number and redis.call('HGETALL', KEYS[1] .. ':item:' .. number) or {}
