-- find_commit.lua: reads the commit that has an id.
-- KEYS  head, commits, ids
-- ARGV  1 commit id  2 revision that the id says or ''  3 beginning of a row with this id
-- Gives false if it did not land, else {revision, row}.
--@include landed_commit.lua
local head = redis.call('HMGET', KEYS[1], 'revision', 'base')
if not head[1] then
  return false
end
local row, revision = seen_row(KEYS, tonumber(head[2]), tonumber(head[1]), {id = ARGV[1], said = ARGV[2], beginning = ARGV[3]})
return row and {revision, row} or false
