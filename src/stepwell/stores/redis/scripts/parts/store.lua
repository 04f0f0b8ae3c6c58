-- store.lua: is this still the store that the process opened? A server that was flushed, or came back without its data, has
-- another id or none; writing there would pass off what is left as the whole.
local function is_lost(id, key)
  return redis.call('GET', key) ~= id
end
