-- expiry.lua: starts the sliding TTL of an execution anew: all its keys end in the same millisecond, or none does ('0').
local function keep(ttl_ms)
  if ttl_ms ~= '0' then
    for i = 1, 4 do
      redis.call('PEXPIRE', KEYS[i], ttl_ms)
    end
  end
end
