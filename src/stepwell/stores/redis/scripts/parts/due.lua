-- due.lua: when a worker should look at an execution. The time stands in the execution's head and, on a single server, in a sorted
-- set for each workflow, whose name is built here because only the head knows the workflow. A cluster has no such sets.
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
    if due then
      redis.call('ZADD', due_of(due, workflow), digits(at), id)
    end
  else
    redis.call('HDEL', head, 'wake')
    if due then
      redis.call('ZREM', due_of(due, workflow), id)
    end
  end
end
