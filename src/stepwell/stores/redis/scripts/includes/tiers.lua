-- tiers.lua: reads the limits of a workspace, a list: 1 concurrency  2 weight  3 rate per second  4 queue depth  5 bytes of state
-- 6 seconds that ended items are kept  7 children at once  8 keys of state  9, 10 bytes and keys of each workflow's state; nil for no limit.
-- They are those of its tier, but for overrides that have not ended. In a tier's row, those from 8 on are one JSON text, or missing.
-- Needs `queue` and `now`.
local limit_names = {
  'concurrency', 'weight', 'rate_per_second', 'queue_depth', 'state_bytes', 'retention_seconds', 'child_concurrency',
  'state_keys', 'workflow_state_bytes', 'workflow_state_keys',
}
local in_text = 8

local known_tiers = {}
local function tier_of(name)
  local tier = known_tiers[name]
  if not tier then
    tier = cmsgpack.unpack(redis.call('HGET', queue .. ':tiers', name))
    local quotas = tier[in_text] and cjson.decode(tier[in_text]) or {}
    for place = in_text, #limit_names do
      tier[place] = quotas[limit_names[place]]
    end
    known_tiers[name] = tier
  end
  return tier
end

-- The limits of a workspace whose row was unpacked: {tier, whether it is paused, created, overrides}.
local function limits_of(row)
  local tier = tier_of(row[1])
  if not row[4] or row[4] == '' then
    return tier
  end
  local limits, overrides = {}, cjson.decode(row[4])
  for place, name in ipairs(limit_names) do
    local override = overrides[name]
    if override and override.until_ms > now then
      limits[place] = override.value ~= cjson.null and override.value or nil
    else
      limits[place] = tier[place]
    end
  end
  return limits
end
