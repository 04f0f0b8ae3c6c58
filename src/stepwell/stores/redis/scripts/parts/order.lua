-- order.lua: makes the units of a group take effect in order. A unit that was planned on state that has changed since stops all units
-- after it; the writer plans and sends them again. The last of ARGV names the group, and the last of KEYS is where a stop is left; '' for a unit
-- alone and for a group that cannot stop.
if ARGV[#ARGV] ~= '' and redis.call('GET', KEYS[#KEYS]) == ARGV[#ARGV] then
  return 'behind'
end
local function stop()
  if ARGV[#ARGV] ~= '' then
    redis.call('SET', KEYS[#KEYS], ARGV[#ARGV], 'PX', 60000)
  end
  return 'stale'
end
