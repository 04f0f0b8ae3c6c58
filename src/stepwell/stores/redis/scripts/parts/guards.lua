-- guards.lua: do all locks still have the fences that the writer was given? Gives the number of the first that does not.
-- From KEYS[key] on the locks, from ARGV[arg] on their number and then each fence.
local function broken_guard(key, arg)
  for i = 1, tonumber(ARGV[arg]) do
    if redis.call('HGET', KEYS[key + i - 1], 'fence') ~= ARGV[arg + i] then
      return i
    end
  end
end
