-- scoped_state.lua: writes the scoped state of one unit, if each scope is still as it was read.
--
-- A scope is five keys:
--   rows       hash: key -> 'revision end ttl kind data', a tombstone without data; '' (no key is empty) -> the scope's totals
--   keys       sorted set of the keys that have data, all with score 0, so that a page of them is a range in order of bytes
--   revisions  sorted set of all keys, tombstones among them, by revision
--   ends       sorted set of the keys that have data and an end, by that end
--   tombs      sorted set of the tombstones, by the time they were made
-- Redis cannot expire a field of a hash, so an end is a number that readers compare; a sweep takes what has ended.
--
-- A scope of a unit is a table:
--   path, keys (the five above), before (the totals that must be there now), after (the totals to write, '' if nothing is written)
--   place (its place by workspace, if the index may lack the scope), time (now, in ms), cleared (the revision of a clearing, if any)
--   grown, more (by how many bytes and keys it grows)
--   owners (its workspace, and if it is of a workflow that, each a list: 1 name  2, 3 how many bytes and keys it may have before
--   this write, if that is limited)
--   rows (lists: 1 key  2 row  3 revision  4 its end, or the time of a tombstone  5 whether it is a tombstone)
-- The indexes are keys: scopes, ends, tombs (see keys.py), and counts (hash: NAME bytes, NAME keys -> how much an owner has). An owner's
-- name is its workspace, encoded, or WORKSPACE/WORKFLOW. It is counted by state_quotas.lua once it is limited, and from then on here.
-- Needs time.lua.

local function is_over(counts, field, most)
  if not most then
    return false
  end
  local count = redis.call('HGET', counts, field)
  return not count or tonumber(count) > most
end

local function is_stale(scopes, counts)
  for _, scope in ipairs(scopes) do
    if (redis.call('HGET', scope.keys[1], '') or '') ~= scope.before then
      return true
    end
    for _, owner in ipairs(scope.owners) do
      if is_over(counts, owner[1] .. ' bytes', owner[2]) or is_over(counts, owner[1] .. ' keys', owner[3]) then
        return true
      end
    end
  end
  return false
end

local function count_growth(scope, counts)
  for _, owner in ipairs(scope.owners) do
    if redis.call('HEXISTS', counts, owner[1] .. ' bytes') == 1 then
      redis.call('HINCRBY', counts, owner[1] .. ' bytes', scope.grown)
      redis.call('HINCRBY', counts, owner[1] .. ' keys', scope.more)
    end
  end
end

local function bury(keys, name, row, revision, made)
  redis.call('HSET', keys[1], name, row)
  redis.call('ZADD', keys[3], revision, name)
  redis.call('ZREM', keys[2], name)
  redis.call('ZREM', keys[4], name)
  redis.call('ZADD', keys[5], made, name)
end

local function clear(keys, revision, made)
  for _, name in ipairs(redis.call('ZRANGE', keys[2], 0, -1)) do
    bury(keys, name, digits(revision) .. ' ' .. digits(made) .. ' - f', revision, made)
  end
end

local function write_row(keys, name, row, revision, ends, is_tombstone)
  if is_tombstone then
    return bury(keys, name, row, revision, ends)
  end
  redis.call('HSET', keys[1], name, row)
  redis.call('ZADD', keys[2], 0, name)
  redis.call('ZADD', keys[3], revision, name)
  redis.call('ZREM', keys[5], name)
  if ends then
    redis.call('ZADD', keys[4], ends, name)
  else
    redis.call('ZREM', keys[4], name)
  end
end

local function note_first(index, path, zset)
  local first = redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')
  if first[2] then
    redis.call('ZADD', index, first[2], path)
  else
    redis.call('ZREM', index, path)
  end
end

local function write_scope(scope, indexes)
  local keys, path = scope.keys, scope.path
  if scope.cleared then
    clear(keys, scope.cleared, scope.time)
  end
  for _, row in ipairs(scope.rows) do
    write_row(keys, unpack(row, 1, 5))
  end
  redis.call('HSET', keys[1], '', scope.after)
  redis.call('PERSIST', keys[1])
  if scope.place then
    redis.call('ZADD', indexes.scopes, 0, 'a/' .. path, 0, scope.place)
  end
  note_first(indexes.ends, path, keys[4])
  note_first(indexes.tombs, path, keys[5])
  if scope.grown ~= 0 or scope.more ~= 0 then
    count_growth(scope, indexes.counts)
  end
end

-- Writes the scopes; gives whether there was anything to write.
local function write_scopes(scopes, indexes)
  local is_written = false
  for _, scope in ipairs(scopes) do
    if scope.after ~= '' then
      write_scope(scope, indexes)
      is_written = true
    end
  end
  return is_written
end
