-- return_item.lua: returns a claimed item, if the fence is that of its present claim: it waits again, or is FAILED. Without an error
-- the attempt does not count, nor does the start in the rate of its workspace and queue.
-- KEYS  store, queue
-- ARGV  1 store's id  2 milliseconds that the clock is ahead  3 channel for the queue
--       4 packed list: item id, fence, delay in ms, whether it is final, error or nil
-- Gives {'ok', item}, 'claim' (it was lost) or 'lost'.
--@include group_order.lua
--@include store_id.lua
--@include time.lua
--@include due.lua
if is_lost(ARGV[1], KEYS[1]) then
  return 'lost'
end
local queue, now = KEYS[2], now_ms(ARGV[2])
--@include items.lua
--@include requeue.lua
--@include tiers.lua
--@include rates.lua
local id, fence, delay, is_final, error = unpack(cmsgpack.unpack(ARGV[4]), 1, 5)
local item = item_with(id)
if not item or item.status ~= 'CLAIMED' or item.fence ~= fence then
  return 'claim'
end
if not error then
  local claimed = tonumber(redis.call('HGET', queue .. ':item:' .. item.number, 'claimed') or 0)
  local workspace, name = named(item.workspace), named(item.queue)
  local row, settings = redis.call('HGET', queue .. ':workspaces', workspace), redis.call('HGET', queue .. ':queues', name)
  if row then
    give_back_start(queue .. ':rates', workspace, limits_of(cmsgpack.unpack(row))[3], claimed, now)
  end
  if settings then
    give_back_start(queue .. ':queue_rates', name, cmsgpack.unpack(settings)[3], claimed, now)
  end
end
if is_final or (error and item.attempts >= item.most) then
  end_item(item, 'FAILED', error, now)
else
  make_wait(item, now + delay, error and item.attempts or item.attempts - 1, error or item.error, now)
end
redis.call('PUBLISH', ARGV[3], '')
return {'ok', whole(item.number)}
