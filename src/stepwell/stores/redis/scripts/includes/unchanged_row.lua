-- unchanged_row.lua: finds out whether a row has changed since a writer read it: `based_on` is the packed row that the writer read, ''
-- for none, '*' if any row will do.
-- Rows are compared by their values: a number has more than one way to be packed.
local function has_changed(row, based_on)
  if based_on == '*' then
    return false
  end
  if not row or based_on == '' then
    return (row or '') ~= based_on
  end
  local present, before = cmsgpack.unpack(row), cmsgpack.unpack(based_on)
  for place = 1, 8 do
    if present[place] ~= before[place] then
      return true
    end
  end
  return false
end
