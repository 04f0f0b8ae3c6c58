-- fast_commits.lua: lands many small commits, each whole or not at all: steps, which only add a receipt to their execution, and runs,
-- which make an execution by its only commit and end its queue item. A commit that cannot land is left as it was, for commit.lua to
-- give the reason. Most commits are of these two kinds, and one call for many saves the work of a call for each.
-- The names of keys are built here.
-- KEYS  1 store  2 executions  3 queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 TTL of an execution in ms or '0'  4 channel for the queue
--       5 packed list of commits, each a list: prefix of the execution's keys, revision, digest, signature or '', time, row,
--         and for a step: digest that must be the head's, fence or nil
--         and for a run: nil, fence, execution id, workspace, workflow, version, parent or '', status, item id, the item's status,
--         the fence of its claim, its error or nil
-- Gives a digit for each commit: '1' if it landed, else '0'.
--@include store_id.lua
if is_lost(ARGV[1], KEYS[1]) then
  return string.rep('0', #cmsgpack.unpack(ARGV[5]))
end
local call, queue, ttl = redis.call, KEYS[3], ARGV[3]

local function land_step(keys, revision, digest, signature, time, row, previous, fence)
  local head_key, commits = keys .. 'head', keys .. 'commits'
  local head = call('HMGET', head_key, 'revision', 'digest', 'base', 'fence')
  if tonumber(head[1]) ~= revision - 1 or head[2] ~= previous or (fence and tonumber(head[4]) ~= fence)
      or call('LLEN', commits) ~= head[1] - head[3] then
    return '0'
  end
  call('RPUSH', commits, row)
  call('HSET', head_key, 'revision', revision, 'digest', digest, 'signature', signature, 'updated', time, 'claims', '0')
  if ttl ~= '0' then
    for _, part in ipairs({'head', 'commits', 'ids', 'snapshots'}) do
      call('PEXPIRE', keys .. part, ttl)
    end
  end
  return '1'
end

-- What only runs need is made for the first one.
local land_run, finish_runs
local function prepare_runs()
--@include time.lua
--@include due.lua
--@include execution_index.lua
--@include batch.lua
--@include queue_keys.lua
  local now = now_ms(ARGV[2])

  land_run = function(keys, revision, digest, signature, time, row, fence, execution, workspace, workflow, version, parent, status, item_id,
    item_status, claim_fence, error)
    local number = call('HGET', queue .. ':ids', item_id)
    local name = number and queue .. ':item:' .. number
    local item = name and call('HMGET', name, 'status', 'execution', 'fence', 'singleton', 'workspace', 'queue', 'error')
    if not item or item[1] ~= 'CLAIMED' or item[2] ~= execution or tonumber(item[3] or 0) ~= claim_fence or item[4] then
      return '0'
    end
    local head, commits = keys .. 'head', keys .. 'commits'
    if call('EXISTS', head, commits, keys .. 'ids', keys .. 'snapshots') > 0 then
      return '0'
    end

    call('RPUSH', commits, row)
    call('HSET', head, 'workspace', workspace, 'workflow', workflow, 'version', version, 'parent', parent, 'status', status, 'revision',
      revision, 'digest', digest, 'signature', signature, 'fence', fence, 'base', -1, 'created', time, 'updated', time)
    if ttl ~= '0' then
      call('PEXPIRE', head, ttl)
      call('PEXPIRE', commits, ttl)
    end
    for _, place in ipairs({places(execution, time, workspace, status)}) do
      later('ZADD', KEYS[2], 0, place)
    end

    call('HSET', name, 'status', item_status, 'finished', now)
    call('HDEL', name, 'until')
    if error then
      call('HSET', name, 'error', error)
    elseif item[7] then
      call('HDEL', name, 'error')
    end
    local owner = named(item[5])
    later('SREM', queue .. ':used:' .. owner, number)
    later('SREM', queue .. ':busy:' .. named(item[6]), number)
    later('ZREM', queue .. ':active', number)
    later('ZREM', queue .. ':claims', number)
    later('ZADD', queue .. ':ended:' .. owner, now, number)
    if item_status ~= 'COMPLETED' then
      later('ZADD', queue .. ':dead', 0, number)
    end
    return '1'
  end

  finish_runs = function()
    flush()
    if call('EXISTS', queue .. ':ready', queue .. ':delayed') > 0 then
      call('PUBLISH', ARGV[4], '')
    end
  end
end

local landed = {}
for i, commit in ipairs(cmsgpack.unpack(ARGV[5])) do
  if commit[9] then
    if not land_run then
      prepare_runs()
    end
    local keys, revision, digest, signature, time, row = unpack(commit, 1, 6)
    landed[i] = land_run(keys, revision, digest, signature, time, row, unpack(commit, 8, 18))
  else
    landed[i] = land_step(unpack(commit, 1, 8))
  end
end
if finish_runs then
  finish_runs()
end
return table.concat(landed)
