-- claim_items.lua: claims items that are ready and have capacity, fairly between workspaces, by priority and then first in first out
-- inside one. The script runs alone, so the caps hold at every instant. Its cost grows with the number of lanes that have
-- something ready and with the limit, not with the length of the queue.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 holder  4 milliseconds  5 most to claim
--       6 packed list of queues, encoded; empty for all  7 the same of workflows
-- Gives {'ok', end, {id, workspace, workflow, version, execution, input, fence and attempts before, queue, enqueued, ...}, ...} or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local queue, now = KEYS[2], now_ms(ARGV[2])
--@include batch.lua
--@include queue_keys.lua
--@include tiers.lua
--@include heap.lua
--@include fairness.lua
local limit = tonumber(ARGV[5])
local ends = now + ARGV[4]
if limit < 1 then
  return {'ok', ends}
end

-- So many at most, so that no claim takes for ever; the next one goes on.
local due = redis.call('ZRANGEBYSCORE', queue .. ':delayed', '-inf', now, 'LIMIT', 0, 1000)
for _, number in ipairs(due) do
  local found = redis.call('HMGET', queue .. ':item:' .. number, 'workspace', 'queue', 'workflow', 'priority')
  if found[1] then
    make_ready({number = number, workspace = found[1], queue = found[2], workflow = found[3], priority = tonumber(found[4] or 0)})
  end
  later('ZREM', queue .. ':delayed', number)
end
flush()

local lines, workspaces, queues, lanes = wanted_lanes(cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7]))
if lanes == 0 then
  return {'ok', ends}
end
local virtual_time = tonumber(redis.call('GET', queue .. ':turn') or 0)
local shares, open = shares_of(lines, workspaces, virtual_time), open_queues(queues, now)
local claims, emptied, started = {'ok', ends}, {}, {}

local function take(number, share, line)
  local name = queue .. ':item:' .. number
  local row = redis.call('HMGET', name, 'id', 'workspace', 'workflow', 'version', 'execution', 'input', 'fence', 'attempts', 'queue',
    'enqueued', 'run_at', 'debounce')
  local start = share.name .. '/' .. line.queue
  later('ZREM', queue .. ':ready:' .. line.lane, number)
  emptied[line.lane] = true
  if not row[1] then
    return -- lost together with earlier writes, so that no worker can run it
  end
  redis.call('HSET', name, 'status', 'CLAIMED', 'holder', ARGV[3], 'fence', (row[7] or 0) + 1, 'attempts', (row[8] or 0) + 1, 'until', ends,
    'claimed', now)
  later('ZREM', queue .. ':waiting:' .. start, number)
  if row[12] then
    later('ZREM', queue .. ':bounce:' .. share.name .. '/' .. named(row[12]), number)
  end
  later('SADD', queue .. ':used:' .. share.name, number)
  later('SADD', queue .. ':busy:' .. line.queue, number)
  later('ZADD', queue .. ':active', 0, number)
  later('ZADD', queue .. ':claims', ends, number)
  later('LPUSH', queue .. ':waits:' .. start, now - math.max(row[10], row[11]))
  started[start] = true
  claims[#claims + 1] = row
end

local after = choose(shares, open, virtual_time, now, limit, math.min(limit, math.floor(2 * limit / lanes) + 2), take)
flush()
for lane in pairs(emptied) do
  if redis.call('EXISTS', queue .. ':ready:' .. lane) == 0 then
    redis.call('SREM', queue .. ':ready', lane)
  end
end
for start in pairs(started) do
  redis.call('LTRIM', queue .. ':waits:' .. start, 0, 999)
end

-- For the next claim's fairness and rates.
if after ~= virtual_time then
  redis.call('SET', queue .. ':turn', after)
end
for _, share in ipairs(shares) do
  if share.taken > 0 then
    later('HSET', queue .. ':passes', share.name, share.base + share.taken / share.weight)
    if share.rate and share.rate > 0 then
      later('HSET', queue .. ':rates', share.name, later_rate_ms(share.rate, share.rate_ms, now, share.taken))
    end
  end
end
for name, each in pairs(open) do
  if each.taken > 0 and each.rate and each.rate > 0 then
    later('HSET', queue .. ':queue_rates', name, later_rate_ms(each.rate, each.rate_ms, now, each.taken))
  end
end
flush()
return claims
