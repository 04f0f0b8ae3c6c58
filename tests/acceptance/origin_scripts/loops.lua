-- Loops over a range, a collection, and while a value in State is small; functions get the round and the steps in it.
local ranged = Workflow.loop({
  name = "ranged",
  iterator = {range = {start = 1, ["end"] = 5, step = 1}},
  body = {
    {name = "mark", type = "tool", tool = "origin.identify", input = {seed = "{{loop:current_value}}"}},
    {name = "tell", type = "tool", tool = "origin.template", input = {
      template = "{{ index }} of {{ all }} is {{ id }}",
      variables = {index = "{{loop:current_value}}", all = "{{loop:total_iterations}}", id = "{{step:mark:output}}"}}},
  },
  error_strategy = "continue",
}):execute()

State.set("names", {"one.csv", "two.csv", "three.csv"})
local over = Workflow.loop({
  name = "over",
  iterator = {collection = State.get("names")},
  body = {
    {name = "check", type = "custom", execute = function(context) return {success = true, output = context.current_item} end},
    {name = "hash", type = "tool", tool = "origin.identify", input = {seed = "{{loop:current_item}}"}},
  },
  on_iteration_complete = function(index, results)
    local done = State.get("done") or {}
    table.insert(done, {file = results.current_item, hash = results.steps.hash.output, index = index})
    State.set("done", done)
  end,
}):execute()

State.set("total", 0)
local while_small = Workflow.loop({
  name = "while_small",
  iterator = {while_condition = {type = "shared_data_less_than", key = "total", value = 100}},
  body = {
    {name = "value", type = "tool", tool = "origin.calculate", input = {operation = "add", a = 20, b = 10}},
    {name = "add", type = "custom", execute = function(context)
      local sum = State.get("total") + tonumber(context.steps.value.output)
      State.set("total", sum)
      return {success = true, output = "now " .. sum}
    end},
  },
  max_iterations = 50,
}):execute()

local rounds = 0
local counted = Workflow.builder():name("counted"):loop():loop_condition(function(context)
  rounds = rounds + 1
  return context.iteration < 3
end):max_iterations(10):add_step({name = "step", tool = "origin.identify", input = {seed = "$iteration"}}):build():execute()

local people = {{name = "Ada", team = "A"}, {name = "Bo", team = "B"}, {name = "Cy", team = "Finance"}, {name = "Di", team = "D"}}
local until_found = Workflow.loop({
  name = "until_found",
  iterator = {collection = people},
  body = {{name = "read", type = "tool", tool = "origin.template", input = {template = "{{ p }}", variables = {p = "{{loop:current_item.team}}"}}}},
  aggregation_strategy = "collect_outputs",
  break_condition = {type = "step_output_contains", step_name = "read", substring = "Finance"},
}):execute()
return {
  ranged = ranged.data.completed_iterations, told = ranged.iteration_outputs, over = over.data.completed_iterations,
  done = State.get("done"), total = State.get("total"), small = while_small.data.completed_iterations,
  counted = counted.data.completed_iterations, rounds = rounds, found = until_found.data.aggregated_results,
}
