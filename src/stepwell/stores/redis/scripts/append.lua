-- append.lua: lands a plain commit, whose id Stepwell made for this revision, at the end of its execution's chain, as commit.lua does; or does nothing, and leaves it to
-- commit.lua to say why. Most commits are plain, and half of what a small script costs is the number of its arguments.
-- KEYS  head, commits, ids, snapshots, store
-- ARGV  1 store's id  2 revision that must be the head's  3 digest that must be the head's  4 revision  5 digest  6 row  7 time
--       8 signature or ''  9 fence or ''  10 TTL in ms or '0'
-- Gives 'ok' or 'other'.
local call = redis.call
local head = call('HMGET', KEYS[1], 'revision', 'digest', 'base', 'fence')
if head[1] ~= ARGV[2] or head[2] ~= ARGV[3] or (ARGV[9] ~= '' and ARGV[9] ~= head[4])
    or call('LLEN', KEYS[2]) ~= head[1] - head[3] or call('GET', KEYS[5]) ~= ARGV[1] then
  return 'other'
end
call('RPUSH', KEYS[2], ARGV[6])
call('HSET', KEYS[1], 'revision', ARGV[4], 'digest', ARGV[5], 'signature', ARGV[8], 'updated', ARGV[7], 'claims', '0')
if ARGV[10] ~= '0' then
  for i = 1, 4 do
    call('PEXPIRE', KEYS[i], ARGV[10])
  end
end
return 'ok'
