-- store.lua: is this still the store that the process opened? A server that was flushed, or came back without its data, has
-- another id or none; writing there would pass off what is left as the whole.
-- On a cluster the central keys are on a node of their own, the process passes '' for the id, and nothing is compared.
local function is_lost(id, key)
  return id ~= '' and redis.call('GET', key) ~= id
end
