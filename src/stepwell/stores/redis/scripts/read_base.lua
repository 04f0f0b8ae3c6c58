-- read_base.lua: reads the snapshot that the retained chain starts from.
-- KEYS  head, snapshots
-- Gives {} if the chain starts with the creation, else {snapshot, its revision}.
local base = redis.call('HGET', KEYS[1], 'base')
if not base then
  return {}
end
return redis.call('ZRANGEBYSCORE', KEYS[2], base, base, 'WITHSCORES')
