-- scan.lua: reads a page of live entries, in order of their keys' bytes, in one view.
-- KEYS  rows, keys
-- ARGV  1 lower bound  2 upper bound  3 most to read  4 milliseconds that the clock is ahead
-- Gives a list of key, row, key, row, ...; shorter than asked for only at the end.
--@include time.lua
local now, page, low, most = now_ms(ARGV[4]), {}, ARGV[1], 2 * ARGV[3]
while #page < most do
  local names = redis.call('ZRANGEBYLEX', KEYS[2], low, ARGV[2], 'LIMIT', 0, 500)
  if #names == 0 then
    break
  end
  for i, row in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
    local ends = tonumber(string.match(row, '^%d+ (%S+)'))
    if #page < most and not (ends and ends <= now) then
      page[#page + 1] = names[i]
      page[#page + 1] = row
    end
  end
  low = '(' .. names[#names]
end
return page
