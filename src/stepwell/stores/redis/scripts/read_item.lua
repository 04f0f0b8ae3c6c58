-- read_item.lua: reads a queue item.
-- KEYS  queue
-- ARGV  1 item id
-- Gives its fields and values, none if there is no such item.
local number = redis.call('HGET', KEYS[1] .. ':ids', ARGV[1])
if not number then
  return {}
end
local fields = redis.call('HGETALL', KEYS[1] .. ':item:' .. number)
fields[#fields + 1] = 'number'
fields[#fields + 1] = number
return fields
