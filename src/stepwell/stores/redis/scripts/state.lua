-- state.lua: lands operations on scoped state together, and nudges executions: all of it, on rows as they were read, or nothing.
-- KEYS  the head of each nudged execution; a lock for each guard; five for each scope;
--       store, due, scopes, ends, tombs, held
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for state  4 channel for what is due
--       5 number of nudged, their ids; number of guards, their fences; number of scopes, the scopes (see rows.lua)
-- Gives 'ok', {'guard', which}, 'stale' or 'lost'.
--@include order.lua
--@include store.lua
--@include time.lua
--@include guards.lua
--@include due.lua
--@include nudges.lua
--@include rows.lua
local guards_at = 6 + ARGV[5]
local scopes_at = guards_at + 1 + ARGV[guards_at]
local guards_key = 1 + ARGV[5]
local scopes_key = guards_key + ARGV[guards_at]
local central = ARGV[1] ~= '' and scopes_key + 5 * ARGV[scopes_at] or nil
if central and is_lost(ARGV[1], KEYS[central]) then
  return 'lost'
end
local broken = broken_guard(guards_key, guards_at)
if broken then
  return {'guard', broken}
end
if is_stale(scopes_key, scopes_at, central and central + 2) then
  return stop()
end

if ARGV[5] ~= '0' then
  nudge(1, 5, central and KEYS[central + 1], now_ms(ARGV[2]))
  redis.call('PUBLISH', ARGV[4], '')
end
if ARGV[scopes_at] ~= '0' then
  write_scopes(scopes_key, scopes_at, central and central + 2)
  redis.call('PUBLISH', ARGV[3], '')
end
return 'ok'
