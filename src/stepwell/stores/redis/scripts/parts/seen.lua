-- seen.lua: the row of a commit id that has landed, or nil. Ids that a user chose are in `ids`; one that Stepwell made says its
-- revision (`said`), and the row there begins with the id if it is its own. Of one that was archived the row is ''.
-- KEYS  1 head  2 commits  3 ids
local function seen_row(base, newest, id, said, beginning)
  local revision = tonumber(said)
  if revision and revision > base and revision <= newest then
    local row = redis.call('LINDEX', KEYS[2], revision - base - 1)
    if row and string.sub(row, 1, #beginning) == beginning then
      return row, revision
    end
  end
  revision = redis.call('ZSCORE', KEYS[3], id)
  if revision and tonumber(revision) <= base then
    return '', tonumber(revision)
  end
  if revision then
    return redis.call('LINDEX', KEYS[2], revision - base - 1), tonumber(revision)
  end
end
