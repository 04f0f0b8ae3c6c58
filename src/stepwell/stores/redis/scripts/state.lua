-- state.lua: lands operations on scoped state together: all of them, on rows as they were read, or nothing.
-- KEYS  a lock for each guard; five for each scope; on a single server also store, mark, scopes, ends, tombs
-- ARGV  1 store's id or ''  2 channel for state  3 number of guards, their fences, number of scopes, the scopes (see rows.lua)
-- Gives 'ok', {'guard', which}, 'stale' or 'lost'.
--@include order.lua
--@include store.lua
--@include guards.lua
--@include rows.lua
local guards = tonumber(ARGV[3])
local scopes_at, scopes_key = 4 + guards, 1 + guards
local central = ARGV[1] ~= '' and scopes_key + 5 * ARGV[scopes_at] or nil
if central and is_lost(ARGV[1], KEYS[central]) then
  return 'lost'
end
local broken = broken_guard(1, 3)
if broken then
  return {'guard', broken}
end
if is_stale(scopes_key, scopes_at) then
  return stop()
end

write_scopes(scopes_key, scopes_at, central and central + 2)
redis.call('PUBLISH', ARGV[2], '')
if central then
  redis.call('INCR', KEYS[central + 1])
end
return 'ok'
