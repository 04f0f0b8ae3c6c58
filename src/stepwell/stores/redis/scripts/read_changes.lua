-- read_changes.lua: reads all entries, tombstones among them, with a revision greater than another, in order of revision, in one view.
-- KEYS  rows, revisions
-- ARGV  1 revision
-- Gives a list of key, row, key, row, ...
local names, rows = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[1], '+inf'), {}
for from = 1, #names, 500 do
  local some = {unpack(names, from, math.min(from + 499, #names))}
  for i, row in ipairs(redis.call('HMGET', KEYS[1], unpack(some))) do
    rows[#rows + 1] = some[i]
    rows[#rows + 1] = row
  end
end
return rows
