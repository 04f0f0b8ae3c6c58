-- write_state.lua: lands operations on scoped state together, and nudges executions: all of it, on rows as they were read, or nothing.
-- KEYS  1 store  2 due  3 scopes  4 ends  5 tombs  6 counts
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for what is due  4 channel for state
--       5 packed batch (see ScriptCaller.state in script_calls.py); one with `is_check` is only checked, never written
-- Gives 'ok', 'checked', {'guard', which}, 'stale', 'behind' or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include lock_guards.lua
--@include due.lua
--@include nudges.lua
--@include scoped_state.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local batch = cmsgpack.unpack(ARGV[5])
local broken = broken_guard(batch.guards)
if broken then
  return {'guard', broken}
end
if is_stale(batch.scopes, KEYS[6]) then
  return stop()
end
if batch.is_check then
  return 'checked'
end

nudge(batch.nudges, KEYS[2], now_ms(ARGV[2]))
if #batch.nudges > 0 then
  redis.call('PUBLISH', ARGV[3], '')
end
if write_scopes(batch.scopes, {scopes = KEYS[3], ends = KEYS[4], tombs = KEYS[5], counts = KEYS[6]}) then
  redis.call('PUBLISH', ARGV[4], '')
end
return 'ok'
