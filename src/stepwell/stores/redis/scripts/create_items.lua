-- create_items.lua: makes an execution as create.lua does, together with what the commit does to the queue: all of it, or nothing.
-- For a single server: the names of the queue's keys are built here.
-- KEYS  as create.lua
-- ARGV  as create.lua, and behind its scopes what rides with it (see riding.lua)
-- Gives what create.lua gives, {'item', which, why, id} for an item that is refused, or why the mark is (see marks.lua).
--@include order.lua
--@include store.lua
--@include seen.lua
--@include time.lua
--@include due.lua
--@include riding.lua
--@include desk.lua
local function land()
--@include create.lua
end
return ride(land)
