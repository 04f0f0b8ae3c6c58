-- create.lua: makes an execution with its first commit and scoped state, unless its id was ever used: all of it, or nothing.
-- KEYS  as commit.lua
-- ARGV  1 store's id or ''  2 execution id  3 commit id  4 revision that the id says or ''  5 beginning of a row with this id
--       6 revision  7 digest  8 row  9 time  10 status  11 signature or ''  12 TTL in ms or '0'  13 workspace  14 workflow
--       15 version  16 parent or ''  17 channel for state  18 number of guards, their fences, number of scopes, the scopes
-- Gives 'ok', {'seen', row}, {'guard', which}, 'exists', 'stale', 'torn' (there are rows of it, but no head) or 'lost'.
--@include order.lua
--@include store.lua
--@include seen.lua
--@include places.lua
--@include expiry.lua
--@include guards.lua
--@include rows.lua
local guards = tonumber(ARGV[18])
local scopes_at, scopes_key = 19 + guards, 5 + guards
local central = ARGV[1] ~= '' and scopes_key + 5 * ARGV[scopes_at] or nil
if central and is_lost(ARGV[1], KEYS[central]) then
  return 'lost'
end

local head = redis.call('HMGET', KEYS[1], 'revision', 'base')
local seen = head[1] and seen_row(tonumber(head[2]), tonumber(head[1]), ARGV[3], ARGV[4], ARGV[5])
if seen then
  return {'seen', seen}
end
local broken = broken_guard(5, 18)
if broken then
  return {'guard', broken}
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 'exists'
end
if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then
  return 'torn'
end
if is_stale(scopes_key, scopes_at) then
  return stop()
end

redis.call('RPUSH', KEYS[2], ARGV[8])
if ARGV[4] ~= ARGV[6] then
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[3])
end
redis.call('HSET', KEYS[1], 'workspace', ARGV[13], 'workflow', ARGV[14], 'version', ARGV[15], 'parent', ARGV[16],
  'status', ARGV[10], 'revision', ARGV[6], 'digest', ARGV[7], 'signature', ARGV[11], 'fence', '0', 'base', '-1',
  'created', ARGV[9], 'updated', ARGV[9])
keep(ARGV[12])
if ARGV[scopes_at] ~= '0' then
  write_scopes(scopes_key, scopes_at, central and central + 3)
  redis.call('PUBLISH', ARGV[17], '')
end
if central then
  local by_age, by_workspace, by_status = places(ARGV[2], ARGV[9], ARGV[13], ARGV[10])
  redis.call('ZADD', KEYS[central + 2], 0, by_age, 0, by_workspace, 0, by_status)
  redis.call('INCR', KEYS[central + 1])
end
return 'ok'
