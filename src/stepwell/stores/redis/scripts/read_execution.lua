-- read_execution.lua: reads an execution's head, the newest snapshot not after a revision, and the commits from there on, in one view.
-- KEYS  head, commits, snapshots
-- ARGV  1 revision to read up to or '' (the newest)  2 revision to read after, without a snapshot, or ''
-- Gives false, or {head as fields and values, {snapshot, its revision} or {}, revision of the first commit, commits}.
local head = redis.call('HGETALL', KEYS[1])
local found = redis.call('HMGET', KEYS[1], 'revision', 'base')
if not found[1] then
  return false
end
local upto, base = ARGV[1] == '' and tonumber(found[1]) or tonumber(ARGV[1]), tonumber(found[2])
local after, snapshot = tonumber(ARGV[2]), {}
if not after then
  snapshot = redis.call('ZREVRANGEBYSCORE', KEYS[3], upto, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  after = tonumber(snapshot[2]) or -1
end
local first, count = math.max(after, base) + 1, upto - math.max(after, base)
local commits = {}
if count > 0 then
  commits = redis.call('LRANGE', KEYS[2], first - base - 1, first - base - 2 + count)
end
return {head, snapshot, first, commits}
