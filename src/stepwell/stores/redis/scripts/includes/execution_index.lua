-- execution_index.lua: builds the entries of an execution in the index, a sorted set in order of bytes: by age, by workspace and age,
-- by status and age. The age has a fixed width and the workspace its length in front, so that no two entries are equal.
local function places(id, created, workspace, status)
  local age = string.format('%016.0f', created + 1e15) .. id
  return 'a/' .. age, 'w/' .. #workspace .. ':' .. workspace .. age, 's/' .. status .. '/' .. age
end
