-- requeue.lua: makes items wait again, and returns items with all their fields. Needs items.lua.

-- Removes the wait of a start that was undone: the latest one of the same length.
local function forget_start(item)
  local claimed = redis.call('HGET', queue .. ':item:' .. item.number, 'claimed')
  if claimed then
    redis.call('LREM', queue .. ':waits:' .. line_of(item), 1, claimed - ready_since(item))
  end
end

local function make_wait(item, run_at, attempts, error, now, execution)
  forget_start(item)
  move(item, {status = 'QUEUED', run_at = run_at, attempts = attempts, error = error or false, holder = false, ['until'] = false,
    claimed = false, dispatched = false, finished = false, execution = execution or item.execution}, now)
end

-- The fields and values of an item, as they are given back.
local function whole(number)
  local fields = redis.call('HGETALL', queue .. ':item:' .. number)
  fields[#fields + 1] = 'number'
  fields[#fields + 1] = number
  return fields
end

-- Why an item that has ended cannot wait again; nothing if it can.
local function unrevived(item)
  if item.status ~= 'FAILED' and item.status ~= 'CANCELLED' then
    return {'alive', item.status}
  end
  if item.singleton and redis.call('HGET', queue .. ':singles:' .. named(item.workspace), item.singleton) then
    return {'single', item.singleton}
  end
end

-- Makes such an item wait again, with no attempts used. It stands for its names again.
local function revive(item, execution, now, channel)
  make_wait(item, now, 0, nil, now, execution)
  if item.singleton then
    redis.call('HSET', queue .. ':singles:' .. named(item.workspace), item.singleton, item.number)
  end
  redis.call('PUBLISH', channel, '')
end
