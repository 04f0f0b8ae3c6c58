-- count_lanes.lua: counts the items that wait and run, by workspace and queue, in one view.
-- KEYS  queue
-- ARGV  1 milliseconds that the clock is ahead  2 workspace, encoded, or '' for all
-- Gives {workspace, queue, ready, delayed, claimed, dispatched, when the longest waiting became ready or '', waits} for each.
--@include time.lua
--@include due.lua
local queue, now = KEYS[1], digits(now_ms(ARGV[1]))

local function active_in(workspace)
  local counts = {}
  for _, number in ipairs(redis.call('SMEMBERS', queue .. ':used:' .. workspace)) do
    local row = redis.call('HMGET', queue .. ':item:' .. number, 'queue', 'status')
    if row[1] then
      local name = encoded(row[1])
      counts[name] = counts[name] or {CLAIMED = 0, DISPATCHED = 0}
      counts[name][row[2]] = counts[name][row[2]] + 1
    end
  end
  return counts
end

local lanes = {}
for _, workspace in ipairs(ARGV[2] ~= '' and {ARGV[2]} or redis.call('HKEYS', queue .. ':workspaces')) do
  local active = active_in(workspace)
  for _, name in ipairs(redis.call('SMEMBERS', queue .. ':queues:' .. workspace)) do
    local line = workspace .. '/' .. name
    local ready = redis.call('ZCOUNT', queue .. ':waiting:' .. line, '-inf', now)
    local delayed = redis.call('ZCARD', queue .. ':waiting:' .. line) - ready
    local first = ready > 0 and redis.call('ZRANGE', queue .. ':waiting:' .. line, 0, 0, 'WITHSCORES')[2] or ''
    local waits = redis.call('LRANGE', queue .. ':waits:' .. line, 0, -1)
    local count = active[name] or {CLAIMED = 0, DISPATCHED = 0}
    if ready + delayed + count.CLAIMED + count.DISPATCHED + #waits > 0 then
      lanes[#lanes + 1] = {workspace, name, ready, delayed, count.CLAIMED, count.DISPATCHED, first, waits}
    end
  end
end
return lanes
