-- heap.lua: a heap of {tag, number, ...}: the smallest tag is the first, of equal ones the smallest number.
local function is_before(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

-- Brings the entry at a place down to where it belongs.
local function sift(heap, at)
  local entry = heap[at]
  while true do
    local child = 2 * at
    if heap[child + 1] and is_before(heap[child + 1], heap[child]) then
      child = child + 1
    end
    if not heap[child] or not is_before(heap[child], entry) then
      break
    end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = entry
end

local function heapify(heap)
  for at = math.floor(#heap / 2), 1, -1 do
    sift(heap, at)
  end
end

-- Puts another entry in the place of the first; without one the first just goes.
local function replace_first(heap, entry)
  if not entry then
    entry = table.remove(heap)
    if #heap == 0 then
      return
    end
  end
  heap[1] = entry
  sift(heap, 1)
end
