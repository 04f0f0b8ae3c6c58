-- riding.lua: a commit together with what it does to the queue. The last but one of ARGV is a packed list: key of the store's mark,
-- what the queue's keys begin with, channel for the queue, milliseconds that the clock is ahead, items, mark or nil. Needs order.lua,
-- store.lua, seen.lua, time.lua, due.lua.
local riding = cmsgpack.unpack(ARGV[#ARGV - 1])
local queue = riding[2]
--@include items.lua
--@include returning.lua
--@include marks.lua

-- Only a script whose commits bring items has what it takes to add them (desk.lua).
local plan_items, write_items, is_coming_single

local function refusal_or_plan(now)
  local plan = plan_items and plan_items(riding[5], now) or {answers = {}}
  for _, answer in ipairs(plan.answers) do
    if answer[2] ~= 'there' then
      return {'item', unpack(answer)}
    end
  end
  if riding[6] then
    local refusal, item = plan_mark(riding[6], ARGV[2])
    if not refusal and riding[6][2] == 'PENDING' and is_coming_single and is_coming_single(item) then
      refusal = {'single', item.singleton}
    end
    if refusal then
      return refusal
    end
    plan.marked = item
  end
  return nil, plan
end

-- A retry meets its own first writes: what landed before counts, not what it would come to now. A server that lost everything has
-- no item, either.
local function seen_or(refusal)
  if is_lost(ARGV[1], riding[1]) then
    return 'lost'
  end
  local head = redis.call('HMGET', KEYS[1], 'revision', 'base')
  local row = head[1] and seen_row(tonumber(head[2]), tonumber(head[1]), ARGV[3], ARGV[4], ARGV[5])
  return row and {'seen', row} or refusal
end

local function ride(land)
  local now = now_ms(riding[4])
  local refusal, plan = refusal_or_plan(now)
  if refusal then
    return seen_or(refusal)
  end
  local outcome = land()
  if outcome == 'ok' then
    local marked = plan.marked
    if write_items then
      write_items(plan, now, riding[3])
      marked = marked and item_at(marked.number) -- an item of this commit may have changed it
    end
    if marked then
      write_mark(marked, riding[6], now, riding[3])
    end
  end
  return outcome
end
