-- What a script sees of Stepwell: State, Workflow, Tool, workflow, step, Logger, print, null, input.
-- args: what sandbox.lua returns; a table with workflow, execution, step, attempt      returns: run, kind_of, mark_list
--
-- Every call goes to the host as a yield of this coroutine, and the host checks it. Nothing here is a check that anybody relies on.

local box, about = ...
local concat, error, freeze, frozen, len, load = box.concat, box.error, box.freeze, box.frozen, box.len, box.load
local next, pairs, pcall, rawequal, rawget, select = box.next, box.pairs, box.pcall, box.rawequal, box.rawget, box.select
local setmetatable, text_of, type, xpcall, yield = box.setmetatable, box.text_of, box.type, box.xpcall, box.yield
local _G = _G

local PRINTED_BYTES = 65536

-- Values: tables that came as lists stay lists when they are empty, and null inside of a list stays a place.

local lists = setmetatable({}, {__mode = "k"})
local null = setmetatable({}, {__newindex = function() error("null cannot be changed", 2) end, __tostring = function() return "null" end,
  __metatable = false})
frozen[null] = {}

local function kind_of(value)
  if rawequal(value, null) then return "null" end
  if frozen[value] then return "frozen" end
  return lists[value] and "list" or "table"
end

local function mark_list(value)
  lists[value] = true
  return value
end

--- Ask the host. Its refusals are errors at the line of the script that called.
local function ask(name, ...)
  local is_fine, result = yield("ask", name, ...)
  if not is_fine then error(result, 2) end  -- the functions below call this one last, which leaves the script's own line at level 2
  return result
end

-- State: of the workspace with one key, of a named scope with a scope before the key.

local function get(...)
  if select("#", ...) >= 2 then return ask("state.get", ...) end
  return ask("state.get", "global", (...))
end

local function set(...)
  if select("#", ...) >= 3 then return ask("state.set", ...) end
  return ask("state.set", "global", ...)
end

local function delete(...)
  if select("#", ...) >= 2 then return ask("state.delete", ...) end
  return ask("state.delete", "global", (...))
end

local function list(scope) return ask("state.list", scope == nil and "global" or scope) end

local function of_people(name, advice)
  return function() error("State." .. name .. " is not for scripts: " .. advice, 2) end
end

local BACKUP, MIGRATE = "people do it with `stepwell backup`", "people do it with `stepwell migrate`"

-- The outputs of workflows that this script has executed, by their execution ids and names.
local executed = {}

--- The state of a workflow, or the output of one of its steps if this script has executed it.
local function workflow_get(id, key)
  local outputs = executed[text_of(id)]
  if outputs and outputs.found[key] ~= nil then return outputs.found[key] end
  if outputs and outputs.is_run then return nil end
  return ask("state.get_of", text_of(id), key)
end

local function workflow_list(id)
  local outputs, names, seen = executed[text_of(id)], mark_list({}), {}
  if outputs then
    for name in pairs(outputs.found) do names[#names + 1], seen[name] = name, true end
    if outputs.is_run then return names end
  end
  for _, name in pairs(ask("state.list_of", text_of(id))) do
    if not seen[name] then names[#names + 1] = name end
  end
  return names
end

local State = freeze({
  get = get, load = get, set = set, save = set, delete = delete, list = list, list_keys = list,
  workflow_get = workflow_get, workflow_list = workflow_list,
  agent_get = function(id, key) return ask("state.get", "agent:" .. text_of(id), key) end,
  agent_set = function(id, key, value) return ask("state.set", "agent:" .. text_of(id), key, value) end,
  tool_get = function(id, key) return ask("state.get", "tool:" .. text_of(id), key) end,
  tool_set = function(id, key, value) return ask("state.set", "tool:" .. text_of(id), key, value) end,
  migrate = of_people("migrate", MIGRATE), get_migration_status = of_people("get_migration_status", MIGRATE),
  get_schema_versions = of_people("get_schema_versions", MIGRATE),
  create_backup = of_people("create_backup", BACKUP), list_backups = of_people("list_backups", BACKUP),
  restore_backup = of_people("restore_backup", BACKUP), validate_backup = of_people("validate_backup", BACKUP),
  cleanup_backups = of_people("cleanup_backups", BACKUP),
  get_storage_usage = of_people("get_storage_usage", "people see it with `stepwell state list`"),
}, "State")

local function state_of(scope)
  return freeze({
    get = function(key) return ask("state.get", scope, key) end,
    set = function(key, value) return ask("state.set", scope, key, value) end,
    delete = function(key) return ask("state.delete", scope, key) end,
    list = function() return ask("state.list", scope) end,
  }, scope .. ".state")
end

-- Tools: the steps that are registered in the worker's process.

local function call_tool(name, given)
  if type(name) == "table" then name = name.name end
  return ask("tool.call", name, given)
end

local Tool = freeze({
  execute = call_tool, invoke = call_tool, call = call_tool,
  list = function() return ask("tool.list") end,
  exists = function(name) return ask("tool.exists", name) end,
  get = function(name)
    if not ask("tool.exists", name) then return nil end
    return {name = name, execute = function(_, given) return ask("tool.call", name, given) end}
  end,
}, "Tool")

-- Workflows: plain tables that the host makes a definition of. A function stands in one as its number.

local specs = setmetatable({}, {__mode = "k"})
local functions, numbers = {}, {}

local function number_of(f)
  if not numbers[f] then
    functions[#functions + 1] = f
    numbers[f] = #functions
  end
  return numbers[f]
end

--- A copy of a table in which workflows stand as what they are made of, and functions as their numbers.
local function plain(value, depth)
  if depth > 60 then error("the workflow is nested too deeply", 0) end
  local kind = type(value)
  if kind == "function" then return {["$function"] = number_of(value)} end
  if kind ~= "table" or rawequal(value, null) then return value end
  if specs[value] then return {["$workflow"] = specs[value]} end
  local copy = lists[value] and mark_list({}) or {}
  local bare = {}  -- without a metatable, whose __pairs would run
  for key, member in next, value do bare[key] = member end
  for key, member in pairs(bare) do copy[key] = plain(member, depth + 1) end
  return copy
end

-- A workflow that has functions runs inside of this script, and asks it what they return.

--- Let a list of named tables be read by their names, too.
local function by_name(list)
  if type(list) ~= "table" then return end
  setmetatable(list, {__index = function(_, name)
    if type(name) ~= "string" then return nil end
    for place = 1, #list do
      local member = rawget(list, place)
      if type(member) == "table" and rawget(member, "name") == name then return member end
    end
  end, __metatable = false})
end

--- Let the branches of a result or a context be read by their names. What has none, such as an input of any shape, is left as it is.
local function with_names(result)
  if type(result) ~= "table" then return result end
  for _, branches in next, {rawget(result, "branches") or false, rawget(result, "branch_results") or false} do
    by_name(branches)
    for _, branch in next, type(branches) == "table" and branches or {} do
      if type(branch) == "table" then by_name(rawget(branch, "steps")) end
    end
  end
  local data = rawget(result, "data")
  if type(data) == "table" and rawget(result, "step_results") then data.branches = rawget(result, "branches") end
  return result
end

--- Lua code from a text, which sees the state of its loop as its globals, and the script's globals behind them.
local function code_of(code, context)
  local chunk, fault = load(code, "=workflow", "t", setmetatable(context, {__index = _G}))
  if not chunk then error(fault, 0) end
  return chunk
end

local roles = {}

function roles.step(f, context)
  local result = f(context)
  local success = type(result) == "table" and rawget(result, "success")
  if success == true then return result.output end
  if type(result) == "table" and success == false then
    local reason = rawget(result, "error")
    if reason == nil then reason = rawget(result, "output") end
    if type(reason) == "table" and rawget(reason, "message") ~= nil then reason = rawget(reason, "message") end
    error(reason == nil and "the function said success = false" or text_of(reason), 0)
  end
  return result
end

function roles.condition(f, context) return not not f(context) end
function roles.value(f, context) return f(context) end
function roles.hook(f, first, second) return f(first, second) end

function roles.update(f, context, output)
  local state = context.state
  local result = f(state, output)
  if type(result) == "table" then return result end
  return context.state
end

--- Call what a workflow asks for, and tell it what came of it; return what the host says next.
local function answer(asked)
  local is_fine, value = pcall(function()
    local first, second = with_names(asked.first), with_names(asked.second)
    local f = functions[asked["function"]]
    if asked.code then f = code_of(asked.code, first) end
    if not f then error("the script has no such function", 0) end
    return roles[asked["as"]](f, first, second)
  end)
  if not is_fine then
    if type(value) == "table" and rawget(value, "message") ~= nil then value = rawget(value, "message") end
    local told, text = pcall(text_of, value)
    value = told and text or "an error that cannot be shown"
  end
  local goes_on, result, was_refused = yield("ask", "workflow.answer", asked.number, is_fine, value)
  if was_refused then return yield("ask", "workflow.answer", asked.number, false, result) end
  return goes_on, result
end

local runs = setmetatable({}, {__mode = "k"})
local methods = {}

--- A workflow that the host has checked. `spec` is what it is made of, and `runs` has its hooks and its last result.
local function instance(spec)
  local made = setmetatable({type = spec.kind, name = spec.name, id = spec.name, config = spec}, {__index = methods})
  specs[made], runs[made] = spec, {}
  return made
end

local function checked(given, kind)
  if type(given) ~= "table" then error("Workflow." .. kind .. " takes a table", 3) end
  local is_fine, spec = pcall(plain, given, 0)
  if not is_fine then error(spec, 3) end
  spec.kind = kind
  local is_right, result = yield("ask", "workflow.check", spec)
  if not is_right then error(result, 3) end
  for _, code in pairs(result.codes or {}) do
    local chunk, fault = load(code, "=workflow", "t", {})
    if not chunk then error("InvalidDefinition: neither an expression nor Lua: " .. fault, 3) end
  end
  spec.name = result.name
  return instance(spec)
end

local function spec_of(self)
  local spec = specs[self]
  if not spec then error("call it with a colon: workflow:execute(input)", 3) end
  return spec
end

function methods.execute(self, given)
  local spec, run = spec_of(self), runs[self]
  if run.before then run.before(given) end
  local is_fine, result = yield("ask", "workflow.run", spec, given)
  while is_fine and result["$ask"] do is_fine, result = answer(result["$ask"]) end
  if not is_fine then
    if run.failed then run.failed(result) end
    error(result, 2)
  end
  run.result = with_names(result)
  executed[result.execution_id] = {found = result.outputs, is_run = true}
  executed[spec.name or ""] = {found = result.outputs}
  if run.after then run.after(result) end
  return result
end

methods.run = methods.execute

function methods.get_info(self)
  local spec = spec_of(self)
  return {name = spec.name, type = spec.kind, description = spec.description, definition = ask("workflow.check", spec).definition}
end

function methods.validate(self)
  ask("workflow.check", spec_of(self))
  return true
end

function methods.set_shared_data(self, key, value)
  local spec = spec_of(self)
  spec.shared = spec.shared or {}
  spec.shared[key] = value
end

function methods.get_shared_data(self, key) return (spec_of(self).shared or {})[key] end
function methods.set_state(self, key, value) return ask("state.set", "workflow:" .. spec_of(self).name, key, value) end
function methods.get_state(self, key) return ask("state.get", "workflow:" .. spec_of(self).name, key) end
function methods.on_before_execute(self, hook) spec_of(self); runs[self].before = hook end
function methods.on_after_execute(self, hook) spec_of(self); runs[self].after = hook end
function methods.on_error(self, hook) spec_of(self); runs[self].failed = hook end
function methods.get_output(self, step) return (self:get_all_outputs())[step] end

function methods.get_all_outputs(self)
  spec_of(self)
  local result = runs[self].result
  return result and result.outputs or {}
end

function methods.list_outputs(self)
  local names = mark_list({})
  for name in pairs(self:get_all_outputs()) do names[#names + 1] = name end
  return names
end

function methods.clear_outputs(self) spec_of(self); runs[self].result = nil end
function methods.get_execution_id(self)
  spec_of(self)
  local result = runs[self].result
  return result and result.execution_id
end
function methods.get_metrics(self)
  spec_of(self)
  local result = runs[self].result
  return {executions = result and 1 or 0, execution_id = result and result.execution_id}
end
methods.debug = methods.get_info

local builder = {}
local building = setmetatable({}, {__mode = "k"})

local function setter(name, key)
  builder[name] = function(self, value)
    building[self][key] = value
    return self
  end
end

for name, key in next, {
  name = "name", description = "description", error_strategy = "error_strategy", timeout_ms = "timeout_ms", condition = "condition",
  with_range = "range", with_collection = "collection", with_while = "while_condition", loop_condition = "while_condition",
  max_iterations = "max_iterations", max_concurrency = "max_concurrency", version = "version", initial_state = "initial_state",
  state_update = "state_update", fail_fast = "fail_fast",
} do setter(name, key) end

for _, kind in next, {"sequential", "parallel", "conditional", "loop"} do
  builder[kind] = function(self)
    building[self].kind = kind
    return self
  end
end
builder.loop_workflow = builder.loop

local function adder(name, key)
  builder[name] = function(self, step)
    local spec = building[self]
    spec[key] = spec[key] or mark_list({})
    spec[key][#spec[key] + 1] = step
    return self
  end
end

adder("add_step", "steps")
adder("add_then_step", "then_branch")
adder("add_else_step", "else_branch")

function builder.add_template_step(self, step, template, params)
  if type(step) ~= "table" then step = {name = step, template_id = template, params = params} end
  step.type = "template"
  return builder.add_step(self, step)
end

function builder.add_branch(self, branch, steps)
  local spec = building[self]
  spec.branches = spec.branches or mark_list({})
  local copy = {}
  for key, value in next, (type(branch) == "table" and branch or {name = branch}) do copy[key] = value end
  copy.steps = steps or copy.steps
  spec.branches[#spec.branches + 1] = copy
  return self
end

function builder.build(self)
  local spec = building[self]
  return checked(spec, spec.kind or "sequential")
end

local function build(kind) return function(given) return checked(given, kind) end end

local registered = {}

local Workflow = freeze({
  sequential = build("sequential"), parallel = build("parallel"), conditional = build("conditional"), loop = build("loop"),
  builder = function()
    local made = setmetatable({}, {__index = builder})
    building[made] = {}
    return made
  end,
  execute = function(made, given) return made:execute(given) end,
  get = function(name)
    if registered[name] then return registered[name] end
    return ask("workflow.exists", name) and instance({stored = name, name = name, kind = "stored"}) or nil
  end,
  list = function()
    local found = mark_list({})
    for name, made in pairs(registered) do found[#found + 1] = {id = name, name = name, type = made.type} end
    for _, name in pairs(ask("workflow.list")) do found[#found + 1] = {id = name, name = name, type = "stored"} end
    return found
  end,
  register = function(name, made) registered[name] = made end,
  remove = function(name)
    local was = registered[name] ~= nil
    registered[name] = nil
    return was
  end,
  clear = function() registered = {} end,
  types = function() return mark_list({"sequential", "parallel", "conditional", "loop"}) end,
  discover_types = function()
    local found = mark_list({})
    for place, kind in next, {"sequential", "parallel", "conditional", "loop"} do
      found[place] = {type = kind, name = kind, description = "a " .. kind .. " workflow", features = mark_list({})}
    end
    return found
  end,
}, "Workflow")

-- What it prints goes to the log of the run, with the next call or at the end.

local printed, bytes = {}, 0

local function log(level, ...)
  local parts = {}
  for place = 1, select("#", ...) do parts[place] = text_of((select(place, ...))) end
  local line = concat(parts, "\t")
  bytes = bytes + len(line)
  if bytes <= PRINTED_BYTES then printed[#printed + 1] = {level, line} end
end

local function take_printed()
  if printed[1] == nil then return nil end
  local taken = printed
  printed = {}
  return taken
end

--- An event of a script goes to the log of the run.
function methods.emit(self, event, data)
  log("info", "workflow " .. text_of(spec_of(self).name) .. ": " .. text_of(event), type(data) == "table" and "" or data)
end

local function logger(level) return function(...) log(level, ...) end end

_G.State, _G.Tool, _G.Workflow, _G.null = State, Tool, Workflow, null
_G.print = logger("info")
_G.Logger = freeze({debug = logger("debug"), info = logger("info"), warn = logger("warning"), error = logger("error")}, "Logger")
_G.workflow = freeze({name = about.workflow, id = about.workflow, execution_id = about.execution, state = state_of("workflow")}, "workflow")
_G.step = freeze({name = about.step, attempt = about.attempt, state = state_of("step")}, "step")

--- Run a script in this coroutine: it ends with a yield of "done" and the result, or of "failed" and a message.
local function run(code, given)
  local chunk, fault = load(code, "=script", "t", _G)
  if not chunk then return yield("failed", "syntax", fault) end
  _G.input = given
  local is_fine, result = xpcall(chunk, function(raised)
    if type(raised) == "table" and rawget(raised, "message") ~= nil then raised = rawget(raised, "message") end
    return text_of(raised)
  end, given)
  if is_fine then return yield("done", result) end
  return yield("failed", "error", result)
end

return run, kind_of, mark_list, take_printed
