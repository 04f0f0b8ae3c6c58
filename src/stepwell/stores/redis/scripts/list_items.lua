-- list_items.lua: reads a page of queue items, newest first, in one view. It looks at a limited number of items, so that it never blocks for long.
-- KEYS  queue
-- ARGV  1 index  2 where to begin (below it)  3 most to give  4 most to look at  5 queue or ''  6 status or ''  7 workflow or ''
-- Gives {the number of the last one that was looked at, or '' if there are no more, item, ...}.
local found = {''}
local page = redis.call('ZREVRANGEBYLEX', KEYS[1] .. ':' .. ARGV[1], ARGV[2], '-', 'LIMIT', 0, ARGV[4])
for i, number in ipairs(page) do
  local name = KEYS[1] .. ':item:' .. number
  local row = redis.call('HMGET', name, 'queue', 'status', 'workflow')
  local is_wanted = row[1]
  for field = 1, 3 do
    is_wanted = is_wanted and (ARGV[4 + field] == '' or ARGV[4 + field] == row[field])
  end
  if is_wanted then
    local fields = redis.call('HGETALL', name)
    fields[#fields + 1] = 'number'
    fields[#fields + 1] = number
    found[#found + 1] = fields
  end
  if #found > tonumber(ARGV[3]) or (i == #page and #page == tonumber(ARGV[4])) then
    found[1] = number
    break
  end
end
return found
