-- Takes everything out of a fresh Lua 5.4 that reaches files, processes, bytecode, the host or its memory, and bounds the rest.
-- args: seed (integer), now (seconds since 1970)      returns: what api.lua builds on, in one table
--
-- Runs before any code of a script. Whatever is used later is kept in a local here, since a script may replace every global.

local seed, now = ...

local PATTERN_BYTES, SUBJECT_BYTES, MADE_BYTES = 256, 65536, 1048576

local error, ipairs, next, rawget, select, type = error, ipairs, next, rawget, select, type
local getmetatable, setmetatable, tostring, tonumber, rawset, rawequal = getmetatable, setmetatable, tostring, tonumber, rawset, rawequal
local load, pcall, xpcall, yield = load, pcall, xpcall, coroutine.yield
local floor, random, randomseed, mathtype = math.floor, math.random, math.randomseed, math.type
local sort, concat, unpack = table.sort, table.concat, table.unpack
local byte, find, format, gmatch, gsub, len = string.byte, string.find, string.format, string.gmatch, string.gsub, string.len
local match, rep, sub = string.match, string.rep, string.sub

local frozen = setmetatable({}, {__mode = "k"})

--- A table that a script can read and not change.
local function freeze(members, name)
  local seen = {}
  frozen[seen] = members
  return setmetatable(seen, {
    __index = members,
    __newindex = function() error(name .. " cannot be changed", 2) end,
    __metatable = false,
  })
end

--- A text for people: without the address, which would say where the host keeps its memory.
local function text_of(value)
  local kind = type(value)
  if kind == "string" or kind == "number" or kind == "boolean" or kind == "nil" then
    return tostring(value)
  end
  local meta = getmetatable(value)
  local describe = type(meta) == "table" and rawget(meta, "__tostring")
  if describe then
    local told = describe(value)
    if type(told) ~= "string" then error("'__tostring' must return a string", 2) end
    return told
  end
  return kind
end

-- Patterns run in C, where nothing can stop them but the end of the process: short subjects keep them short.

local function check_pattern(subject, pattern)
  if type(pattern) == "string" and len(pattern) > PATTERN_BYTES then
    error("the pattern is longer than " .. PATTERN_BYTES .. " bytes", 3)
  end
  if type(subject) == "string" and len(subject) > SUBJECT_BYTES then
    error("the text to search is longer than " .. SUBJECT_BYTES .. " bytes", 3)
  end
end

local strings = {
  byte = byte, char = string.char, len = len, lower = string.lower, reverse = string.reverse, sub = sub, upper = string.upper,
  pack = string.pack, packsize = string.packsize, unpack = string.unpack,
}

function strings.find(subject, pattern, start, plain)
  if not plain then check_pattern(subject, pattern) end
  return find(subject, pattern, start, plain)
end

function strings.match(subject, pattern, start)
  check_pattern(subject, pattern)
  return match(subject, pattern, start)
end

function strings.gmatch(subject, pattern, start)
  check_pattern(subject, pattern)
  return gmatch(subject, pattern, start)
end

function strings.gsub(subject, pattern, replacement, most)
  check_pattern(subject, pattern)
  return gsub(subject, pattern, replacement, most)
end

function strings.rep(text, times, separator)
  local length = (len(text) + (separator and len(separator) or 0)) * (tonumber(times) or 0)
  if length > MADE_BYTES then error("string.rep would make more than " .. MADE_BYTES .. " bytes", 2) end
  return rep(text, times, separator)
end

function strings.format(pattern, ...)
  if type(pattern) == "string" and find(gsub(pattern, "%%%%", ""), "%%[^%a]*p") then
    error("'%p' is not allowed: it shows addresses", 2)
  end
  local given, count = {...}, select("#", ...)
  for place = 1, count do
    local kind = type(given[place])
    if kind ~= "string" and kind ~= "number" and kind ~= "nil" and kind ~= "boolean" then given[place] = text_of(given[place]) end
  end
  return format(pattern, unpack(given, 1, count))
end

local string_meta = getmetatable("")
for key in next, string_meta do string_meta[key] = nil end
string_meta.__index = strings
string_meta.__metatable = false

--- Pairs in one order in every run: numbers, then texts, each sorted, then the rest.
local function ordered(left, right)
  local a, b = type(left), type(right)
  if a == b then
    if a == "number" or a == "string" then return left < right end
    return false
  end
  return a < b
end

local function sorted_pairs(subject)
  local meta = getmetatable(subject)
  local own = type(meta) == "table" and rawget(meta, "__pairs")
  if own then
    local step, state, start = own(subject)
    return step, state, start
  end
  local keys, count = {}, 0
  local members = frozen[subject] or subject
  for key in next, members do
    count = count + 1
    keys[count] = key
  end
  sort(keys, ordered)
  local at = 0
  return function()
    while at < count do
      at = at + 1
      local value = rawget(members, keys[at])
      if value ~= nil then return keys[at], value end
    end
  end, subject, nil
end

local function safe_setmetatable(subject, meta)
  if type(meta) == "table" and rawget(meta, "__gc") ~= nil then
    error("'__gc' is not allowed: it would run when nobody waits for it", 2)
  end
  if frozen[subject] then error("this table cannot be changed", 2) end
  return setmetatable(subject, meta)
end

local function safe_rawset(subject, key, value)
  if frozen[subject] then error("this table cannot be changed", 2) end
  return rawset(subject, key, value)
end

randomseed(seed, seed)
local maths = {}
for name, member in next, math do maths[name] = member end
maths.random = function(...) return random(...) end
maths.randomseed = function(one) randomseed(floor(tonumber(one) or 0), 0) end

local tables = {concat = concat, insert = table.insert, move = table.move, pack = table.pack, remove = table.remove, sort = sort,
  unpack = unpack}
local utf8s = {}
for name, member in next, utf8 do utf8s[name] = member end

-- Times: the moment at which the attempt began, always the same inside of it, in UTC.

local DAYS = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"}
local MONTHS = {"January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
  "December"}

--- Days since 1970-01-01 of a date in the Gregorian calendar; months beyond 12 run into the next years.
local function days_of(year, month, day)
  year = year + (month - 1) // 12
  month = (month - 1) % 12 + 1
  if month <= 2 then year = year - 1 end
  local era = year // 400
  local of_era = year - era * 400
  local of_year = (153 * (month + (month > 2 and -3 or 9)) + 2) // 5 + day - 1
  return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
end

local function date_of(seconds)
  local days, rest = seconds // 86400, seconds % 86400
  local shifted = days + 719468
  local era = shifted // 146097
  local of_era = shifted - era * 146097
  local years = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
  local of_year = of_era - (365 * years + years // 4 - years // 100)
  local shifted_month = (5 * of_year + 2) // 153
  local month = shifted_month + (shifted_month < 10 and 3 or -9)
  local year = years + era * 400 + (month <= 2 and 1 or 0)
  return {
    year = year, month = month, day = of_year - (153 * shifted_month + 2) // 5 + 1,
    hour = rest // 3600, min = rest % 3600 // 60, sec = rest % 60,
    wday = (days + 4) % 7 + 1, yday = days - days_of(year, 1, 1) + 1, isdst = false,
  }
end

local function whole(value, name)
  local number = mathtype(tonumber(value)) and floor(tonumber(value))
  if not number then error("field '" .. name .. "' is missing in a date, or no number", 3) end
  if number > 1000000000000 or number < -1000000000000 then error("field '" .. name .. "' is out of bound", 3) end
  return number
end

local system = {}

function system.time(date)
  if date == nil then return floor(now) end
  if type(date) ~= "table" then error("os.time takes a table", 2) end
  local days = days_of(whole(date.year, "year"), whole(date.month, "month"), whole(date.day, "day"))
  return days * 86400 + whole(date.hour or 12, "hour") * 3600 + whole(date.min or 0, "min") * 60 + whole(date.sec or 0, "sec")
end

local function two(number) return format("%02d", number) end

local marks = {
  Y = function(d) return format("%d", d.year) end, y = function(d) return two(d.year % 100) end,
  m = function(d) return two(d.month) end, d = function(d) return two(d.day) end, e = function(d) return format("%2d", d.day) end,
  H = function(d) return two(d.hour) end, M = function(d) return two(d.min) end, S = function(d) return two(d.sec) end,
  I = function(d) return two((d.hour + 11) % 12 + 1) end, p = function(d) return d.hour < 12 and "AM" or "PM" end,
  A = function(d) return DAYS[d.wday] end, a = function(d) return sub(DAYS[d.wday], 1, 3) end,
  B = function(d) return MONTHS[d.month] end, b = function(d) return sub(MONTHS[d.month], 1, 3) end,
  j = function(d) return format("%03d", d.yday) end, w = function(d) return format("%d", d.wday - 1) end,
  Z = function() return "UTC" end, z = function() return "+0000" end, n = function() return "\n" end, t = function() return "\t" end,
  s = function(d) return format("%d", d.stamp) end, ["%"] = function() return "%" end,
}
local longer = {c = "%a %b %e %H:%M:%S %Y", x = "%m/%d/%y", X = "%H:%M:%S", D = "%m/%d/%y", F = "%Y-%m-%d", T = "%H:%M:%S",
  R = "%H:%M", r = "%I:%M:%S %p", h = "%b"}

function system.date(pattern, time)
  pattern = pattern == nil and "%c" or pattern
  if type(pattern) ~= "string" or len(pattern) > PATTERN_BYTES then error("os.date takes a short text", 2) end
  local stamp = whole(time == nil and now or time, "time")
  pattern = gsub(pattern, "^!", "")
  local date = date_of(stamp)
  if sub(pattern, 1, 2) == "*t" then return date end
  date.stamp = stamp
  pattern = gsub(pattern, "%%(%a)", function(mark) return longer[mark] end)
  return (gsub(pattern, "%%(.?)", function(mark)
    local written = marks[mark]
    if not written then error("os.date does not know '%" .. mark .. "'", 2) end
    return written(date)
  end))
end

function system.clock() return 0.0 end
function system.difftime(later, earlier) return later - (earlier or 0) + 0.0 end
function system.getenv() return nil end

local globals = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = sorted_pairs, pcall = pcall,
  rawequal = rawequal, rawget = rawget, rawlen = rawlen, rawset = safe_rawset, select = select, setmetatable = safe_setmetatable,
  tonumber = tonumber, tostring = text_of, type = type, xpcall = xpcall, _VERSION = _VERSION,
}
local shared = _G
for name in next, shared do shared[name] = nil end
for name, member in next, globals do shared[name] = member end
shared._G = shared
shared.math, shared.os, shared.string = freeze(maths, "math"), freeze(system, "os"), freeze(strings, "string")
shared.table, shared.utf8 = freeze(tables, "table"), freeze(utf8s, "utf8")

return {
  concat = concat, error = error, freeze = freeze, frozen = frozen, len = len, load = load, next = next, pairs = sorted_pairs,
  pcall = pcall, rawequal = rawequal, rawget = rawget, select = select, setmetatable = setmetatable, text_of = text_of, type = type, xpcall = xpcall,
  yield = yield,
}
