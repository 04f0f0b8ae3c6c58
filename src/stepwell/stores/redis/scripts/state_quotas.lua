-- state_quotas.lua: reads how many bytes of scoped state workspaces may hold, and how many they hold.
-- KEYS  queue, held
-- ARGV  1 milliseconds that the clock is ahead  2... workspaces, encoded
-- Gives two for each workspace: the bytes that its tier allows and those that it has; '' and '' if its tier does not limit them.
--@include time.lua
local queue, now = KEYS[1], now_ms(ARGV[1])
--@include tiers.lua
local rooms = {}
for at = 2, #ARGV do
  local row = redis.call('HGET', queue .. ':workspaces', ARGV[at])
  local most = row and limits_of(cmsgpack.unpack(row))[5]
  rooms[#rooms + 1] = most and string.format('%.0f', most) or ''
  rooms[#rooms + 1] = most and (redis.call('HGET', KEYS[2], ARGV[at]) or '0') or ''
end
return rooms
