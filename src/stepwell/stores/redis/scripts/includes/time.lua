-- time.lua: reads the server's time in milliseconds, plus the milliseconds that the process's clock is ahead (0 outside tests), and
-- makes fences. A fence is the time in microseconds, or the last fence plus one if that is higher: it grows even if the last is lost.
local clock
local function time()
  clock = clock or redis.call('TIME')
  return clock
end
local function now_ms(ahead)
  return time()[1] * 1000 + math.floor(time()[2] / 1000) + ahead
end
local function next_fence(last)
  return math.max((tonumber(last) or 0) + 1, time()[1] * 1000000 + time()[2])
end
local function digits(number)
  return string.format('%.0f', number)
end
