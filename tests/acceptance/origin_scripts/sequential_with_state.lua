-- Steps hand values on through State: in hooks of steps, in functions as steps, and in hooks of the workflow.
State.set("totals", {files = 0, bytes = 0})
local collect = Workflow.sequential({
  name = "collect",
  steps = {
    {name = "open", type = "tool", tool = "origin.identify", input = {seed = "s"}, on_complete = function(result)
      State.set("session", result.output)
      State.set("began", os.time())
    end},
    {name = "find", type = "tool", tool = "origin.files", input = {path = "/somewhere"}, on_complete = function(result)
      State.set("files", result.output.files or {})
    end},
    {name = "count", type = "custom", execute = function()
      local totals = State.get("totals")
      for _, file in ipairs(State.get("files")) do
        totals.files = totals.files + 1
        totals.bytes = totals.bytes + file.size
      end
      State.set("totals", totals)
      return {success = true, output = string.format("%d files of %d bytes", totals.files, totals.bytes)}
    end},
    {name = "report", type = "tool", tool = "origin.template", input = {
      template = "{{ title }}: {{ told }}", variables = {title = "report", told = "{{step:count:output}}"}}},
    {name = "save", type = "tool", tool = "origin.files", input = {path = "/reports/{{step:open:output}}.txt"},
      on_complete = function(result) State.set("saved", result.output.path) end},
  },
  error_strategy = "continue",
  on_start = function() State.set("status", "running") end,
  on_complete = function(success) State.set("status", success and "completed" or "failed") end,
})
local first = collect:execute()

local function add(result)
  local sum = State.get("sum")
  table.insert(sum.values, tonumber(result.output))
  sum.total = sum.total + tonumber(result.output)
  State.set("sum", sum)
end
local accumulate = Workflow.sequential({
  name = "accumulate",
  steps = {
    {name = "begin", type = "custom", execute = function()
      State.set("sum", {values = {}, total = 0})
      return {success = true, output = "begun"}
    end},
    {name = "fifty", type = "tool", tool = "origin.calculate", input = {operation = "multiply", a = 10, b = 5}, on_complete = add},
    {name = "twenty_five", type = "tool", tool = "origin.calculate", input = {operation = "add", a = 20, b = 5}, on_complete = add},
    {name = "average", type = "custom", execute = function()
      local sum = State.get("sum")
      State.set("average", sum.total / #sum.values)
      return {success = true, output = "values " .. table.concat(sum.values, ", ")}
    end},
  },
})
local second = accumulate:execute()
return {
  success = first.success and second.success, report = first.outputs.report, final = second.data.final_output,
  steps = first.data.steps_executed, failed = first.metadata.steps_failed, average = State.get("average"),
  saved = State.get("saved"), status = State.get("status"), totals = State.get("totals"),
}
