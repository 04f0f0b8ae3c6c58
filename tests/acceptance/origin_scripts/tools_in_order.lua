-- Tools one after another, without functions: each hands its output on, and the result tells how many ran.
local made = Workflow.sequential({
  name = "price",
  steps = {
    {name = "net", type = "tool", tool = "origin.calculate", input = {operation = "multiply", a = 100, b = 2.5}},
    {name = "gross", type = "tool", tool = "origin.calculate", input = {operation = "multiply", a = "{{step:net:output}}", b = 1.2}},
    {name = "tell", type = "tool", tool = "origin.template",
      input = {template = "{{ price }} due", variables = {price = "{{step:gross:output}}"}}},
  },
  error_strategy = "fail_fast",
  timeout_ms = 60000,
})
local result = made:execute()
local function broken(strategy)
  return Workflow.sequential({name = "broken", error_strategy = strategy, steps = {
    {name = "divide", tool = "origin.calculate", input = {operation = "divide", a = 1, b = 0}},
    {name = "after", tool = "origin.identify", input = {seed = "x"}}}})
end
local continued = broken("continue"):execute()
return {
  success = result.success, steps = result.data.steps_executed, final = result.data.final_output,
  took = type(result.duration_ms), text = result.text:match("completed successfully"),
  failed_step = continued.failed_step, partial = continued.partial_success, succeeded = continued.metadata.steps_succeeded,
  error = continued.step_results.divide.error, fails = not pcall(broken("fail_fast").execute, broken("fail_fast")),
}
