-- marks.lua: moves an item on, by the rules of model.lifecycle. Needs items.lua. A mark is a list: item id, status, fence or nil,
-- error or nil. With an execution, only that one's item is moved.

-- All that it takes to move an item that is active: marks are many, and fields take their time.
local BRIEF = {'status', 'workspace', 'queue', 'execution', 'fence', 'singleton', 'error'}

local function item_to_mark(id)
  local number = redis.call('HGET', queue .. ':ids', id)
  local item = read_item(number, BRIEF)
  return item and item.status == 'PENDING' and item_at(number) or item
end

-- Whether the claim was lost; else the item to move, or nothing if it stays as it is.
local function plan_mark(mark, execution)
  local item = item_to_mark(mark[1])
  local is_other = not item or (execution and item.execution ~= execution)
  if mark[3] and (is_other or not ACTIVE[item.status] or item.fence ~= mark[3]) then
    return true
  end
  if is_other or ENDED[item.status] or item.status == mark[2] then
    return false
  end
  return false, item
end

local function write_mark(item, mark, now, channel)
  if mark[2] == 'DISPATCHED' then
    redis.call('HSET', queue .. ':executions', item.execution, item.number)
    return move(item, {status = 'DISPATCHED', ['until'] = false, dispatched = now}, now)
  end
  end_item(item, mark[2], mark[4], now)
  tell_of_room(channel)
end
