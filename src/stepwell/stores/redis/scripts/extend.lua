-- extend.lua: prolongs a lease that is still held; a lease that ended or was taken stays as it is.
-- KEYS  head, commits, ids, snapshots; on a single server also store, mark
-- ARGV  1 store's id or ''  2 holder  3 fence  4 milliseconds  5 milliseconds that the clock is ahead  6 TTL in ms or '0'
-- Gives {'ok', end}, 'fence' or 'lost'.
--@include order.lua
--@include store.lua
--@include time.lua
--@include expiry.lua
if is_lost(ARGV[1], KEYS[5]) then
  return 'lost'
end
local head = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'until')
local now = now_ms(ARGV[5])
if head[1] ~= ARGV[2] or head[2] ~= ARGV[3] or tonumber(head[3]) <= now then
  return 'fence'
end

local ends = now + ARGV[4]
redis.call('HSET', KEYS[1], 'until', digits(ends))
keep(ARGV[6])
if ARGV[1] ~= '' then
  redis.call('INCR', KEYS[6])
end
return {'ok', ends}
