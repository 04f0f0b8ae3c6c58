-- Branches of tools and functions; a hook and a step after them read the branches by number and by name.
local function query(output) return function() return {success = true, output = output} end end
local fetched = Workflow.parallel({
  name = "fetch",
  branches = {
    {name = "database", required = true, steps = {
      {name = "users", type = "custom", execute = query({users = 1250, active = 980})},
      {name = "format", type = "tool", tool = "origin.template",
        input = {template = "{{ n }} users", variables = {n = "{{step:users:output.users}}"}}}}},
    {name = "files", required = false, steps = {{name = "list", type = "tool", tool = "origin.files", input = {path = "/"}}}},
    {name = "broken", required = false, steps = {{name = "fail", type = "tool", tool = "origin.calculate",
      input = {operation = "divide", a = 1, b = 0}}}},
  },
  on_complete = function(results)
    State.set("aggregated", {database = results.branches.database, time = results.duration_ms >= 0, second = results.branches[2].name})
  end,
  error_strategy = "continue",
}):execute()

local function chunk(name, a, b)
  return {name = name, steps = {{name = "process", type = "tool", tool = "origin.calculate", input = {operation = "add", a = a, b = b}},
    {name = "again", type = "tool", tool = "origin.calculate", input = {operation = "add", a = "{{step:process:output}}", b = 0}}}}
end
local reduced = Workflow.parallel({
  name = "map_reduce",
  branches = {chunk("first", 10, 20), chunk("second", 30, 40), chunk("third", 50, 60)},
  post_steps = {{name = "reduce", type = "custom", execute = function(context)
    local total = 0
    for _, branch in ipairs(context.branch_results) do
      if branch.success then total = total + tonumber(branch.steps[2].output) end
    end
    return {success = true, output = "total " .. total}
  end}},
  max_concurrency = 2,
}):execute()
return {
  fine = fetched.data.successful_branches, failed = fetched.data.failed_branches, success = fetched.success,
  aggregated = State.get("aggregated"), format = fetched.outputs.format, reduced = reduced.output, state = reduced.data.final_output,
}
