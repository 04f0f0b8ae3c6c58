-- group_order.lua: makes the units of a group take effect in order. A unit whose state has changed since it was planned stops all
-- units after it; the writer plans and sends them again. The last of ARGV names the group, '' for a unit alone and for a group that
-- cannot stop; the last of KEYS is the key that a stop is written to.
if ARGV[#ARGV] ~= '' and redis.call('GET', KEYS[#KEYS]) == ARGV[#ARGV] then
  return 'behind'
end
local function stop()
  if ARGV[#ARGV] ~= '' then
    redis.call('SET', KEYS[#KEYS], ARGV[#ARGV], 'PX', 60000)
  end
  return 'stale'
end
