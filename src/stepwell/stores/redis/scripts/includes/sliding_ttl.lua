-- sliding_ttl.lua: starts the sliding TTL of an execution anew. All its keys expire in the same millisecond; none does if the TTL is '0'.
local function keep(keys, ttl_ms)
  if ttl_ms ~= '0' then
    for i = 1, 4 do
      redis.call('PEXPIRE', keys[i], ttl_ms)
    end
  end
end
