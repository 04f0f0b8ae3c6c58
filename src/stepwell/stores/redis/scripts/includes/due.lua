-- due.lua: sets when a worker should look at an execution: in the execution's head, and in a sorted set for each workflow, whose name
-- is built here because only the head knows the workflow.
local function encoded(text)
  return (string.gsub(text, '[^A-Za-z0-9_.~-]', function(char)
    return string.format('%%%02X', string.byte(char))
  end))
end

local function due_of(due, workflow)
  return due .. ':' .. encoded(workflow)
end

local function wake_at(head, due, id, workflow, at)
  if at then
    redis.call('HSET', head, 'wake', digits(at))
    redis.call('ZADD', due_of(due, workflow), digits(at), id)
  else
    redis.call('HDEL', head, 'wake')
    redis.call('ZREM', due_of(due, workflow), id)
  end
end
