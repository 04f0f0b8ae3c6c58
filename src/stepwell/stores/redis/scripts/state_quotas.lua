-- state_quotas.lua: reads how many bytes of scoped state workspaces may hold, and how many they hold.
-- KEYS  queue, held
-- ARGV  workspaces, encoded
-- Gives two for each workspace: the bytes that its tier allows and those that it has; '' and '' if its tier does not limit them.
local queue = KEYS[1]
--@include tiers.lua
local rooms = {}
for at = 1, #ARGV do
  local row = redis.call('HGET', queue .. ':workspaces', ARGV[at])
  local most = row and tier_of(cmsgpack.unpack(row)[1])[5]
  rooms[#rooms + 1] = most and string.format('%.0f', most) or ''
  rooms[#rooms + 1] = most and (redis.call('HGET', KEYS[2], ARGV[at]) or '0') or ''
end
return rooms
