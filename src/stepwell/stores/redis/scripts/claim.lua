-- claim.lua: leases an execution that is free, expired or already the holder's, with a fence higher than any before.
-- KEYS  head, commits, ids, snapshots; on a single server also store, mark
-- ARGV  1 store's id or ''  2 holder  3 milliseconds  4 milliseconds that the clock is ahead  5 TTL in ms or '0'
-- Gives {'ok', fence, end}, {'held', end}, 'missing' or 'lost'.
--@include order.lua
--@include store.lua
--@include time.lua
--@include expiry.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'revision', 'fence', 'holder', 'until')
if not head[1] then
  return 'missing'
end
local now = now_ms(ARGV[4])
if head[3] and head[3] ~= ARGV[2] and tonumber(head[4]) > now then
  return {'held', tonumber(head[4])}
end

local fence, ends = next_fence(head[2]), now + ARGV[3]
redis.call('HSET', KEYS[1], 'fence', digits(fence), 'holder', ARGV[2], 'until', digits(ends))
keep(ARGV[5])
if ARGV[1] ~= '' then
  redis.call('INCR', KEYS[6])
end
return {'ok', fence, ends}
