-- tiers.lua: reads the limits of a tier, a list: 1 concurrency  2 weight  3 rate per second  4 queue depth  5 bytes of state
-- 6 seconds that ended items are kept; nil for no limit. Needs `queue`.
local known_tiers = {}
local function tier_of(name)
  local tier = known_tiers[name]
  if not tier then
    tier = cmsgpack.unpack(redis.call('HGET', queue .. ':tiers', name))
    known_tiers[name] = tier
  end
  return tier
end
