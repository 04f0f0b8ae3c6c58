-- nudges.lua: has executions looked at: now, or as soon as their holders rest. Unknown and ended ones are left alone.
-- From KEYS[key] on their heads, from ARGV[arg] on their number and then each id.
local FINAL = {COMPLETED = true, PARTIALLY_COMPLETED = true, FAILED = true, CANCELLED = true}

local function nudge(key, arg, due, now)
  for i = 1, tonumber(ARGV[arg]) do
    local head = redis.call('HMGET', KEYS[key + i - 1], 'status', 'holder', 'workflow')
    if head[1] and not FINAL[head[1]] then
      redis.call('HSET', KEYS[key + i - 1], 'nudged', '1')
      if not head[2] then
        wake_at(KEYS[key + i - 1], due, ARGV[arg + i], head[3], now)
      end
    end
  end
end
