-- create.lua: makes an execution with its first commit and scoped state, unless its id was ever used: all of it, or nothing.
-- KEYS  as commit.lua
-- ARGV  1 store's id  2 execution id  3 commit id  4 revision that the id says or ''  5 beginning of a row with this id
--       6 revision  7 digest  8 row  9 time  10 status  11 signature or ''  12 TTL in ms or '0'  13 workspace  14 workflow
--       15 version  16 parent or ''  17 holder or ''  18 milliseconds of its lease  19 whether workers look after it: '1' or '0'
--       20 rest as in commit.lua  21 milliseconds that the clock is ahead  22 channel for state  23 channel for what is due
--       24 number of nudged, their ids; number of guards, their fences; number of scopes, the scopes (see rows.lua)
-- Gives 'ok', {'seen', row}, {'guard', which}, 'exists', 'stale', 'torn' (there are rows of it, but no head) or 'lost'.
--@include order.lua
--@include store.lua
--@include seen.lua
--@include time.lua
--@include places.lua
--@include expiry.lua
--@include guards.lua
--@include due.lua
--@include nudges.lua
--@include rows.lua
local guards_at = 25 + ARGV[24]
local scopes_at = guards_at + 1 + ARGV[guards_at]
local guards_key = 5 + ARGV[24]
local scopes_key = guards_key + ARGV[guards_at]
local central = ARGV[1] ~= '' and scopes_key + 5 * ARGV[scopes_at] or nil
if central and is_lost(ARGV[1], KEYS[central]) then
  return 'lost'
end

local head = redis.call('HMGET', KEYS[1], 'revision', 'base')
local seen = head[1] and seen_row(tonumber(head[2]), tonumber(head[1]), ARGV[3], ARGV[4], ARGV[5])
if seen then
  return {'seen', seen}
end
local broken = broken_guard(guards_key, guards_at)
if broken then
  return {'guard', broken}
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 'exists'
end
if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then
  return 'torn'
end
if is_stale(scopes_key, scopes_at, central and central + 3) then
  return stop()
end

redis.call('RPUSH', KEYS[2], ARGV[8])
if ARGV[4] ~= ARGV[6] then
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[3])
end
redis.call('HSET', KEYS[1], 'workspace', ARGV[13], 'workflow', ARGV[14], 'version', ARGV[15], 'parent', ARGV[16],
  'status', ARGV[10], 'revision', ARGV[6], 'digest', ARGV[7], 'signature', ARGV[11], 'fence', '0', 'base', '-1',
  'created', ARGV[9], 'updated', ARGV[9])
local now, due = now_ms(ARGV[21]), central and KEYS[central + 2]
local rests, is_leased, wake = ARGV[20] ~= '', ARGV[17] ~= ''
if is_leased then
  redis.call('HSET', KEYS[1], 'fence', '1')
end
if rests then
  wake = tonumber(ARGV[20])
elseif is_leased then
  redis.call('HSET', KEYS[1], 'holder', ARGV[17], 'until', digits(now + ARGV[18]))
end
if ARGV[19] == '1' and not rests then
  wake = is_leased and now + ARGV[18] or now
end
if wake then
  wake_at(KEYS[1], due, ARGV[2], ARGV[14], wake)
end
if ARGV[24] ~= '0' then
  nudge(5, 24, due, now)
end
if ARGV[24] ~= '0' or (wake and (rests or not is_leased)) then
  redis.call('PUBLISH', ARGV[23], '')
end
keep(ARGV[12])
if ARGV[scopes_at] ~= '0' then
  write_scopes(scopes_key, scopes_at, central and central + 3)
  redis.call('PUBLISH', ARGV[22], '')
end
if central then
  local by_age, by_workspace, by_status = places(ARGV[2], ARGV[9], ARGV[13], ARGV[10])
  redis.call('ZADD', KEYS[central + 1], 0, by_age, 0, by_workspace, 0, by_status)
end
return 'ok'
