-- store_id.lua: finds out whether the server still has the store that the process opened. A server that was flushed, or restarted
-- without its data, has another id or none; a write there would make an incomplete store look complete.
local function is_lost(id, key)
  return redis.call('GET', key) ~= id
end
