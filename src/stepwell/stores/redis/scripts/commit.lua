-- commit.lua: lands one commit with everything that it carries: its receipt, and the execution's status, snapshot and lease; scoped
-- state, nudges, new queue items, and the move of the item that the execution came from. All of it lands, or nothing.
-- A commit with a creation makes its execution, unless the id was ever used.
-- KEYS  1 store  2 executions  3 due  4 queue  5 scopes  6 ends  7 tombs  8 counts
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 TTL of an execution in ms or '0'
--       4 channel for what is due  5 channel for state  6 channel for the queue
--       7 packed commit (see ScriptCaller.commit in script_calls.py); one with `is_check` is only checked, never written
-- Gives 'ok', 'checked', {'seen', row}, {'guard', which}, 'exists', 'missing', 'fence', {'conflict', revision}, 'torn' (a part of the
-- execution is lost), 'stale', 'behind', 'lost', {'item', which, why, id} for an item that is refused, or why the mark is
-- (see item_marks.lua).
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include landed_commit.lua
--@include execution_index.lua
--@include sliding_ttl.lua
--@include due.lua
--@include lock_guards.lua
--@include nudges.lua
--@include scoped_state.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local commit, queue, now = cmsgpack.unpack(ARGV[7]), KEYS[4], now_ms(ARGV[2])
local head_key, commits_key, ids_key, snapshots_key = unpack(commit.keys)
local creation, rest = commit.creation, commit.rest
local head = redis.call('HMGET', head_key, 'revision', 'digest', 'fence', 'base', 'status', 'created', 'workspace', 'workflow', 'nudged')
local newest, base = tonumber(head[1]), tonumber(head[4])

local function unfit()
  local broken = broken_guard(commit.guards)
  if broken then
    return {'guard', broken}
  end
  if creation then
    if redis.call('EXISTS', head_key) == 1 then
      return 'exists'
    end
    return redis.call('EXISTS', commits_key, ids_key, snapshots_key) > 0 and 'torn' or nil
  end
  if not newest then
    return redis.call('EXISTS', commits_key, ids_key, snapshots_key) > 0 and 'torn' or 'missing'
  end
  if commit.fence and commit.fence ~= tonumber(head[3]) then
    return 'fence'
  end
  if newest + 1 ~= commit.revision or head[2] ~= commit.previous then
    return {'conflict', newest}
  end
  return redis.call('LLEN', commits_key) ~= newest - base and 'torn' or nil
end

local seen = newest and seen_row(commit.keys, base, newest, commit)
if seen then
  return {'seen', seen}
end
local refusal = unfit()
if refusal then
  return refusal
end
if is_stale(commit.scopes, KEYS[8]) then
  return stop()
end
if commit.is_check then
  return 'checked'
end

-- What the commit does to the queue is decided before anything is written, since Redis takes nothing back.
local write_queue
if #commit.items > 0 or commit.mark then
  --@include items.lua
  --@include requeue.lua
  --@include item_marks.lua
  --@include admission.lua
  local plan = plan_items(commit.items, now)
  for _, answer in ipairs(plan.answers) do
    if answer[2] ~= 'there' then
      return {'item', unpack(answer)}
    end
  end
  local marked
  if commit.mark then
    refusal, marked = plan_mark(commit.mark, commit.execution)
    if not refusal and marked and commit.mark[2] == 'QUEUED' and is_coming_single(marked) then
      refusal = {'single', marked.singleton}
    end
    if refusal then
      return refusal
    end
  end
  write_queue = function()
    write_items(plan, now, ARGV[6])
    if marked then
      -- An item of this commit may have changed the marked one.
      write_mark(#commit.items > 0 and item_at(marked.number) or marked, commit.mark, now, ARGV[6])
    end
  end
end

redis.call('RPUSH', commits_key, commit.row)
if commit.said ~= commit.revision then
  redis.call('ZADD', ids_key, commit.revision, commit.id)
end
if commit.snapshot then
  redis.call('ZREMRANGEBYSCORE', snapshots_key, commit.snapshot_revision, commit.snapshot_revision)
  redis.call('ZADD', snapshots_key, commit.snapshot_revision, commit.snapshot)
end

-- Whether a worker should look for what is due now.
local is_due = #commit.nudges > 0
if creation then
  local holder, wake = creation.holder, nil
  redis.call('HSET', head_key, 'workspace', creation.workspace, 'workflow', creation.workflow, 'version', creation.version, 'parent',
    creation.parent, 'status', commit.status, 'revision', commit.revision, 'digest', commit.digest, 'signature', commit.signature,
    'fence', holder and creation.fence or 0, 'base', -1, 'created', commit.time, 'updated', commit.time)
  if rest then
    wake = rest.wake
  elseif holder then
    redis.call('HSET', head_key, 'holder', holder, 'until', digits(now + creation.lease))
  end
  if creation.is_runnable and not rest then
    wake = holder and now + creation.lease or now
  end
  if wake then
    wake_at(head_key, KEYS[3], commit.execution, creation.workflow, wake)
    is_due = is_due or rest or not holder
  end
  local by_age, by_workspace, by_status = places(commit.execution, commit.time, creation.workspace, commit.status)
  redis.call('ZADD', KEYS[2], 0, by_age, 0, by_workspace, 0, by_status)
else
  redis.call('HSET', head_key, 'revision', commit.revision, 'digest', commit.digest, 'signature', commit.signature, 'updated', commit.time,
    'claims', 0)
  if commit.version then
    redis.call('HSET', head_key, 'version', commit.version)
  end
  if commit.status and commit.status ~= head[5] then
    redis.call('HSET', head_key, 'status', commit.status)
    local _, _, before = places(commit.execution, head[6], head[7], head[5])
    local _, _, after = places(commit.execution, head[6], head[7], commit.status)
    redis.call('ZREM', KEYS[2], before)
    redis.call('ZADD', KEYS[2], 0, after)
  end
  if rest then
    local wake = rest.wake
    if head[9] and not rest.is_final then
      wake = now -- it was nudged while it was held
    end
    redis.call('HDEL', head_key, 'holder', 'until', 'nudged')
    wake_at(head_key, KEYS[3], commit.execution, head[8], wake)
    is_due = is_due or not rest.is_final
  end
end
keep(commit.keys, ARGV[3])

nudge(commit.nudges, KEYS[3], now)
if is_due then
  redis.call('PUBLISH', ARGV[4], '')
end
if write_scopes(commit.scopes, {scopes = KEYS[5], ends = KEYS[6], tombs = KEYS[7], counts = KEYS[8]}) then
  redis.call('PUBLISH', ARGV[5], '')
end
if write_queue then
  write_queue()
end
return 'ok'
