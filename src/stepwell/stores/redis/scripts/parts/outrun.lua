-- outrun.lua: whether a row is another than the one that a change of it was worked out on: a packed row, '' for none, '*' for any.
-- Rows are compared by their values: a number has more than one way to be packed.
local function is_outrun(row, based_on)
  if based_on == '*' then
    return false
  end
  if not row or based_on == '' then
    return (row or '') ~= based_on
  end
  local present, before = cmsgpack.unpack(row), cmsgpack.unpack(based_on)
  for place = 1, 6 do
    if present[place] ~= before[place] then
      return true
    end
  end
  return false
end
