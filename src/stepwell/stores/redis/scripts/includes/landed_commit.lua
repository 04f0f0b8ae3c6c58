-- landed_commit.lua: finds the row of a commit id that has landed, and its revision; nil if it has not.
-- `ids` has the ids that users chose. An id that Stepwell made says its revision (`said`), and the row of that revision begins with
-- the id (`beginning`) if it is this commit's. The row of an archived commit is ''.
-- keys: head, commits, ids    wanted: id, said or nil, beginning
local function seen_row(keys, base, newest, wanted)
  local revision = tonumber(wanted.said)
  if revision and revision > base and revision <= newest then
    local row = redis.call('LINDEX', keys[2], revision - base - 1)
    if row and string.sub(row, 1, #wanted.beginning) == wanted.beginning then
      return row, revision
    end
  end
  revision = tonumber(redis.call('ZSCORE', keys[3], wanted.id))
  if revision then
    return revision <= base and '' or redis.call('LINDEX', keys[2], revision - base - 1), revision
  end
end
