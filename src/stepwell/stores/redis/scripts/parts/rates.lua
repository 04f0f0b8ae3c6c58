-- rates.lua: what a rate that is put makes of the next start of a workspace ('rates') or a queue ('queue_rates'); see
-- model.claiming.changed_rate_ms.
local function change_rate(key, name, rate, now)
  local due = tonumber(redis.call('HGET', key, name) or 0)
  local latest = rate and rate > 0 and now + math.max(1000, 1000 / rate)
  if latest and due > latest then
    redis.call('HSET', key, name, latest)
  end
end
