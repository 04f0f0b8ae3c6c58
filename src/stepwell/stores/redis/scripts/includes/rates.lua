-- rates.lua: keeps when the next start of a workspace ('rates') or a queue ('queue_rates') is due.

-- Applies a new rate; see model.queue_fairness.changed_rate_ms.
local function change_rate(key, name, rate, now)
  local due = tonumber(redis.call('HGET', key, name) or 0)
  local latest = rate and rate > 0 and now + math.max(1000, 1000 / rate)
  if latest and due > latest then
    redis.call('HSET', key, name, latest)
  end
end

-- The same without a start that was counted when its item was claimed, and came to nothing; see model.queue_fairness.earlier_rate_ms.
local function give_back_start(key, name, rate, claimed, now)
  local due = rate and rate > 0 and redis.call('HGET', key, name)
  if due then
    redis.call('HSET', key, name, due - math.max(1000 / rate - math.max(now - claimed, 0), 0))
  end
end
