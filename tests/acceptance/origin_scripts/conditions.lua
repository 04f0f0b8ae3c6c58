-- Branches with functions as conditions, on the output of a step before them, and on what the script has put into State.
local asked = {}
local function hours(from, to)
  return {type = "custom", evaluate = function()
    asked[#asked + 1] = from
    local hour = input.hour
    return hour >= from and hour < to
  end}
end
local function say(name, text)
  return {{name = name, type = "tool", tool = "origin.template", input = {template = text, variables = {}}}}
end
local by_time = Workflow.conditional({
  name = "by_time",
  branches = {
    {name = "morning", condition = hours(6, 12), steps = say("greet_early", "good morning")},
    {name = "afternoon", condition = hours(12, 18), steps = say("greet_late", "good afternoon")},
    {name = "evening", condition = {type = "always"}, steps = say("greet_last", "good evening")},
  },
  execute_default_on_no_match = true,
  error_strategy = "continue",
}):execute()

local by_type = Workflow.conditional({
  name = "by_type",
  pre_steps = {{name = "detect", type = "custom", execute = function() return {success = true, output = "text/json"} end}},
  branches = {
    {name = "csv", condition = {type = "step_output_contains", step_name = "detect", substring = "csv"}, steps = say("read_csv", "csv")},
    {name = "json", condition = {type = "step_output_contains", step_name = "detect", substring = "json"},
      steps = say("read_json", "json")},
    {name = "other", condition = {type = "always"}, steps = say("read_any", "any")},
  },
}):execute()

local valid = {type = "shared_data_equals", key = "data_valid", value = true}
local many = {type = "shared_data_greater_than", key = "record_count", value = 0}
local few = {type = "shared_data_less_than", key = "record_count", value = 1}
local checks = Workflow.conditional({
  name = "checks",
  branches = {
    {name = "valid", condition = {type = "and", conditions = {valid, many}}, steps = say("use", "used")},
    {name = "invalid", condition = {type = "or", conditions = {{type = "not", condition = valid}, few}}, steps = say("drop", "dropped")},
    {name = "partial", condition = {type = "shared_data_equals", key = "data_complete", value = false}, steps = say("mend", "mended")},
  },
  execute_all_matching = true,
})
State.set("data_valid", true)
State.set("record_count", 10)
State.set("data_complete", false)
local checked = checks:execute()
return {
  executed = by_time.data.executed_branches, taken = by_time.branch_taken, asked = asked, said = by_time.data.final_output,
  type = by_type.branch_taken, all = checked.data.executed_branches, success = checked.success,
}
