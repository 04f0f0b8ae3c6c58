-- read_history.lua: reads a page of commits after a revision, in order.
-- KEYS  head, commits
-- ARGV  1 revision  2 most to read
-- Gives {revision of the first, commits}.
local base = tonumber(redis.call('HGET', KEYS[1], 'base') or '-1')
local first = math.max(tonumber(ARGV[1]), base) + 1
return {first, redis.call('LRANGE', KEYS[2], first - base - 1, first - base - 2 + ARGV[2])}
