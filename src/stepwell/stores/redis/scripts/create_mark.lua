-- create_mark.lua: makes an execution as create.lua does, together with what becomes of the queue item that the execution came
-- from: all of it, or nothing.
-- For a single server: the names of the queue's keys are built here.
-- KEYS  as create.lua
-- ARGV  as create.lua, and behind its scopes what rides with it (see riding.lua), without items
-- Gives what create.lua gives or why the mark is refused (see marks.lua).
--@include order.lua
--@include store.lua
--@include seen.lua
--@include time.lua
--@include due.lua
--@include riding.lua
local function land()
--@include create.lua
end
return ride(land)
