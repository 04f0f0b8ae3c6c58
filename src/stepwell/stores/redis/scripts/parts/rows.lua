-- rows.lua: the scoped state of one write, on rows as they were read before or not at all.
--
-- A scope is five keys:
--   rows       hash: key -> 'revision end ttl kind data', a tombstone without data; '' (no key is empty) -> the scope's totals
--   keys       sorted set of the keys that have data, all with score 0, so that a page of them is a range in order of bytes
--   revisions  sorted set of all keys, tombstones among them, by revision
--   ends       sorted set of the keys that have data and an end, by that end
--   tombs      sorted set of the tombstones, by the time they were made
-- Redis cannot expire a field of a hash, so an end is a number that readers compare; a sweep takes what has ended.
--
-- From KEYS[key] on five for each scope, from ARGV[arg] on the number of scopes and then for each: path, place by workspace if
-- the index may lack it or '', totals that must be there now, totals afterwards or '' (the scope was only read), revision of a
-- clearing or '', time, by how many bytes the scope grows, how many its workspace may have before at most or '' (any number), number
-- of rows, and for each row: key, row, revision, end or '', whether it is a tombstone ('1').
-- Central keys (single server only), from KEYS[central] on: scopes, ends, tombs, held (hash: workspace, encoded -> bytes).

local function workspace_in(path)
  return string.match(path, '^[^/]*/([^/]*)')
end

local function is_stale(key, arg, central)
  local at = arg + 1
  for _ = 1, tonumber(ARGV[arg]) do
    if (redis.call('HGET', KEYS[key], '') or '') ~= ARGV[at + 2] then
      return true
    end
    local most = central and tonumber(ARGV[at + 7])
    if most and tonumber(redis.call('HGET', KEYS[central + 3], workspace_in(ARGV[at])) or 0) > most then
      return true
    end
    key, at = key + 5, at + 9 + 5 * ARGV[at + 8]
  end
  return false
end

local function bury(key, name, row, revision, made)
  redis.call('HSET', KEYS[key], name, row)
  redis.call('ZADD', KEYS[key + 2], revision, name)
  redis.call('ZREM', KEYS[key + 1], name)
  redis.call('ZREM', KEYS[key + 3], name)
  redis.call('ZADD', KEYS[key + 4], made, name)
end

local function clear(key, revision, made)
  for _, name in ipairs(redis.call('ZRANGE', KEYS[key + 1], 0, -1)) do
    bury(key, name, revision .. ' ' .. made .. ' - f', revision, made)
  end
end

local function write_row(key, at)
  local name, row, revision, ends = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if ARGV[at + 4] == '1' then
    return bury(key, name, row, revision, ends)
  end
  redis.call('HSET', KEYS[key], name, row)
  redis.call('ZADD', KEYS[key + 1], 0, name)
  redis.call('ZADD', KEYS[key + 2], revision, name)
  redis.call('ZREM', KEYS[key + 4], name)
  if ends == '' then
    redis.call('ZREM', KEYS[key + 3], name)
  else
    redis.call('ZADD', KEYS[key + 3], ends, name)
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

local function write_scopes(key, arg, central)
  local at = arg + 1
  for _ = 1, tonumber(ARGV[arg]) do
    local path, place = ARGV[at], ARGV[at + 1]
    if ARGV[at + 4] ~= '' then
      clear(key, ARGV[at + 4], ARGV[at + 5])
    end
    for row = 1, tonumber(ARGV[at + 8]) do
      write_row(key, at + 4 + 5 * row)
    end
    if ARGV[at + 3] ~= '' then
      redis.call('HSET', KEYS[key], '', ARGV[at + 3])
      redis.call('PERSIST', KEYS[key])
    end
    if central and ARGV[at + 3] ~= '' then
      if place ~= '' then
        redis.call('ZADD', KEYS[central], 0, 'a/' .. path, 0, place)
      end
      note_first(KEYS[central + 1], path, KEYS[key + 3])
      note_first(KEYS[central + 2], path, KEYS[key + 4])
      if ARGV[at + 6] ~= '0' then
        redis.call('HINCRBY', KEYS[central + 3], workspace_in(path), ARGV[at + 6])
      end
    end
    key, at = key + 5, at + 9 + 5 * ARGV[at + 8]
  end
end
