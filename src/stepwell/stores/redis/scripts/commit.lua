-- commit.lua: lands a commit at the end of its execution's chain, with its snapshot and scoped state: all of it, or nothing.
-- KEYS  head, commits, ids, snapshots; the head of each nudged execution; a lock for each guard; five for each scope;
--       store, executions, due, scopes, ends, tombs, held
-- ARGV  1 store's id  2 execution id  3 commit id  4 revision that the id says or ''  5 beginning of a row with this id
--       6 revision  7 digest that must be the head  8 digest  9 row  10 time  11 status or ''  12 fence or ''  13 signature or ''
--       14 TTL in ms or '0'  15 snapshot or ''  16 its revision  17 rest: '' (no), 'final', 'nudge' or when to wake
--       18 milliseconds that the clock is ahead  19 channel for state  20 channel for what is due
--       21 number of nudged, their ids; number of guards, their fences; number of scopes, the scopes (see rows.lua)
-- Gives 'ok', {'seen', row}, {'guard', which}, 'missing', 'fence', {'conflict', revision}, 'stale', 'torn' or 'lost'.
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
local guards_at = 22 + ARGV[21]
local scopes_at = guards_at + 1 + ARGV[guards_at]
local guards_key = 5 + ARGV[21]
local scopes_key = guards_key + ARGV[guards_at]
local central = ARGV[1] ~= '' and scopes_key + 5 * ARGV[scopes_at] or nil
if central and is_lost(ARGV[1], KEYS[central]) then
  return 'lost'
end

local head = redis.call('HMGET', KEYS[1], 'revision', 'digest', 'fence', 'base', 'status', 'created', 'workspace')
local newest, base = tonumber(head[1]), tonumber(head[4])
local seen = newest and seen_row(base, newest, ARGV[3], ARGV[4], ARGV[5])
if seen then
  return {'seen', seen}
end
local broken = broken_guard(guards_key, guards_at)
if broken then
  return {'guard', broken}
end
if not newest then
  return redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 and 'torn' or 'missing'
end
if ARGV[12] ~= '' and ARGV[12] ~= head[3] then
  return 'fence'
end
if newest + 1 ~= tonumber(ARGV[6]) or head[2] ~= ARGV[7] then
  return {'conflict', newest}
end
if redis.call('LLEN', KEYS[2]) ~= newest - base then
  return 'torn'
end
if is_stale(scopes_key, scopes_at, central and central + 3) then
  return stop()
end

redis.call('RPUSH', KEYS[2], ARGV[9])
if ARGV[4] ~= ARGV[6] then
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[3])
end
redis.call('HSET', KEYS[1], 'revision', ARGV[6], 'digest', ARGV[8], 'signature', ARGV[13], 'updated', ARGV[10], 'claims', '0')
if ARGV[15] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], ARGV[16], ARGV[16])
  redis.call('ZADD', KEYS[4], ARGV[16], ARGV[15])
end
if ARGV[11] ~= '' and ARGV[11] ~= head[5] then
  redis.call('HSET', KEYS[1], 'status', ARGV[11])
  if central then
    local _, _, before = places(ARGV[2], head[6], head[7], head[5])
    local _, _, after = places(ARGV[2], head[6], head[7], ARGV[11])
    redis.call('ZREM', KEYS[central + 1], before)
    redis.call('ZADD', KEYS[central + 1], 0, after)
  end
end
local due = central and KEYS[central + 2]
if ARGV[17] ~= '' then
  local found = redis.call('HMGET', KEYS[1], 'nudged', 'workflow')
  redis.call('HDEL', KEYS[1], 'holder', 'until', 'nudged')
  local at = tonumber(ARGV[17])
  if ARGV[17] ~= 'final' and found[1] then
    at = now_ms(ARGV[18])
  end
  wake_at(KEYS[1], due, ARGV[2], found[2], at)
end
if ARGV[21] ~= '0' then
  nudge(5, 21, due, now_ms(ARGV[18]))
end
if ARGV[21] ~= '0' or (ARGV[17] ~= '' and ARGV[17] ~= 'final') then
  redis.call('PUBLISH', ARGV[20], '')
end
keep(ARGV[14])
if ARGV[scopes_at] ~= '0' then
  write_scopes(scopes_key, scopes_at, central and central + 3)
  redis.call('PUBLISH', ARGV[19], '')
end
return 'ok'
