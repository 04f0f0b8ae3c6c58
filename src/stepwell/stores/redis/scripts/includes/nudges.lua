-- nudges.lua: makes executions due: now, or as soon as their holders rest. Unknown and ended ones are left alone. Needs due.lua.
-- A nudge is a list: 1 execution id  2 key of its head.
local FINAL = {COMPLETED = true, PARTIALLY_COMPLETED = true, FAILED = true, CANCELLED = true}

local function nudge(nudges, due, now)
  for _, each in ipairs(nudges) do
    local head = redis.call('HMGET', each[2], 'status', 'holder', 'workflow')
    if head[1] and not FINAL[head[1]] then
      redis.call('HSET', each[2], 'nudged', '1')
      if not head[2] then
        wake_at(each[2], due, each[1], head[3], now)
      end
    end
  end
end
