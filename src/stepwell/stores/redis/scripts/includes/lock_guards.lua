-- lock_guards.lua: finds a lock that does not have the fence that the writer was given any more.
-- A guard is a list: 1 key of the lock  2 fence.
local function broken_guard(guards)
  for which, guard in ipairs(guards) do
    if tonumber(redis.call('HGET', guard[1], 'fence')) ~= guard[2] then
      return which
    end
  end
end
