-- runs.lua: lands whole runs of queue items, each by the only commit that its execution has: the execution and its commit are made,
-- and the item ends, as create_mark.lua does; or nothing of it, which is left to create_mark.lua to say why. Runs that do not wait
-- are like this, and many of them begin one script, and share commands.
-- For a single server: the names of keys are built here.
-- KEYS  store, executions, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 TTL in ms or '0'  4 channel for the queue
--       5 packed list of runs: what the keys begin with, execution id, workspace, workflow, version, parent or '', status, revision,
--         digest, signature or '', time, row, fence, item id, item's status, its claim's fence, its error or nil
-- Gives a digit for each run: '1' if it landed, else '0'.
--@include store.lua
--@include time.lua
--@include due.lua
--@include places.lua
local call, queue, now, ttl = redis.call, KEYS[3], now_ms(ARGV[2]), ARGV[3]
--@include batch.lua
--@include names.lua
local runs, landed = cmsgpack.unpack(ARGV[5]), {}
local is_known = not is_lost(ARGV[1], KEYS[1])

local function land(run)
  local number = call('HGET', queue .. ':ids', run[14])
  local name = number and queue .. ':item:' .. number
  local item = name and call('HMGET', name, 'status', 'execution', 'fence', 'singleton', 'workspace', 'queue', 'error')
  if not item or item[1] ~= 'CLAIMED' or item[2] ~= run[2] or tonumber(item[3] or 0) ~= run[16] or item[4] then
    return '0'
  end
  local head, commits = run[1] .. 'head', run[1] .. 'commits'
  if call('EXISTS', head, commits, run[1] .. 'ids', run[1] .. 'snapshots') > 0 then
    return '0'
  end

  call('RPUSH', commits, run[12])
  call('HSET', head, 'workspace', run[3], 'workflow', run[4], 'version', run[5], 'parent', run[6], 'status', run[7], 'revision', run[8],
    'digest', run[9], 'signature', run[10], 'fence', run[13], 'base', '-1', 'created', run[11], 'updated', run[11])
  if ttl ~= '0' then
    call('PEXPIRE', head, ttl)
    call('PEXPIRE', commits, ttl)
  end
  for _, place in ipairs({places(run[2], run[11], run[3], run[7])}) do
    later('ZADD', KEYS[2], 0, place)
  end

  call('HSET', name, 'status', run[15], 'finished', now)
  call('HDEL', name, 'until')
  if run[17] then
    call('HSET', name, 'error', run[17])
  elseif item[7] then
    call('HDEL', name, 'error')
  end
  local workspace = named(item[5])
  later('SREM', queue .. ':used:' .. workspace, number)
  later('SREM', queue .. ':busy:' .. named(item[6]), number)
  later('ZREM', queue .. ':active', number)
  later('ZREM', queue .. ':claims', number)
  later('ZADD', queue .. ':ended:' .. workspace, now, number)
  if run[15] ~= 'COMPLETED' then
    later('ZADD', queue .. ':dead', 0, number)
  end
  return '1'
end

for i, run in ipairs(runs) do
  landed[i] = is_known and land(run) or '0'
end
if #gathered_lists > 0 then
  flush()
  if call('EXISTS', queue .. ':ready', queue .. ':delayed') > 0 then
    call('PUBLISH', ARGV[4], '')
  end
end
return table.concat(landed)
