-- item_marks.lua: moves an item to its next status, by the rules of model.queue_lifecycle. Needs items.lua and requeue.lua.
-- A mark is a list: item id, status, fence or nil, error or nil. With an execution, only the item of that execution moves.
-- Refusals: 'claim' (it was lost), and of an item that cannot wait again 'dropped', {'driven', its execution}, {'alive', its status} or {'single', name}.

-- The fields needed to move an active item. Marks are frequent, and each field takes time to read.
local BRIEF = {'status', 'workspace', 'queue', 'execution', 'fence', 'singleton', 'error'}

local function item_to_mark(id)
  local number = redis.call('HGET', queue .. ':ids', id)
  local item = read_item(number, BRIEF)
  return item and item.status == 'QUEUED' and item_at(number) or item
end

-- Why an item does not wait again for an execution; else the item.
local function plan_again(id, execution)
  local item = item_with(id)
  if not item then
    return 'dropped'
  end
  if execution and item.execution ~= execution then
    return {'driven', item.execution}
  end
  return unrevived(item), item
end

-- Why the mark is refused; else the item to move, or nothing if it stays as it is.
local function plan_mark(mark, execution)
  if mark[2] == 'QUEUED' then
    return plan_again(mark[1], execution)
  end
  local item = item_to_mark(mark[1])
  local is_other = not item or (execution and item.execution ~= execution)
  if mark[3] and (is_other or not ACTIVE[item.status] or item.fence ~= mark[3]) then
    return 'claim'
  end
  if is_other or ENDED[item.status] or item.status == mark[2] then
    return nil
  end
  return nil, item
end

local function write_mark(item, mark, now, channel)
  if mark[2] == 'DISPATCHED' then
    redis.call('HSET', queue .. ':executions', item.execution, item.number)
    return move(item, {status = 'DISPATCHED', ['until'] = false, dispatched = now}, now)
  end
  if mark[2] == 'QUEUED' then
    -- Its input is on record, so no later request may be taken for it.
    redis.call('HDEL', queue .. ':item:' .. item.number, 'debounce')
    item.debounce = nil
    return revive(item, item.execution, now, channel)
  end
  end_item(item, mark[2], mark[4], now)
  tell_of_room(channel)
end
