-- returning.lua: items that wait once more, and items as they are given back. Needs items.lua.

-- A start that came to nothing is no wait to count: one as long is taken from the list, the latest such.
local function forget_start(item)
  local claimed = redis.call('HGET', queue .. ':item:' .. item.number, 'claimed')
  if claimed then
    redis.call('LREM', queue .. ':waits:' .. line_of(item), 1, claimed - ready_since(item))
  end
end

local function make_wait(item, run_at, attempts, error, now, execution)
  forget_start(item)
  move(item, {status = 'PENDING', run_at = run_at, attempts = attempts, error = error or false, holder = false, ['until'] = false,
    claimed = false, dispatched = false, finished = false, execution = execution or item.execution}, now)
end

-- The fields and values of an item, as they are given back.
local function whole(number)
  local fields = redis.call('HGETALL', queue .. ':item:' .. number)
  fields[#fields + 1] = 'number'
  fields[#fields + 1] = number
  return fields
end

-- An item that had ended stands for its names again.
local function hold_names(item)
  if item.singleton then
    redis.call('HSET', queue .. ':singles:' .. named(item.workspace), item.singleton, item.number)
  end
end
