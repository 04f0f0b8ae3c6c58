-- Takes one item of a list in each round, until the tool fails for one. Condition and state_update are Lua in texts.
local divide = Workflow.loop({
  name = "divide_all",
  max_iterations = 50,
  initial_state = {items = {10, 20, 40, 0, 50}, index = 1, results = {}, error_found = false},
  condition = "state.index <= #state.items and not state.error_found",
  body = {name = "divide", tool = "origin.calculate", parameters = {operation = "divide", a = 200, b = "$state.items[state.index]"}},
  state_update = [[
    if body_success then
      table.insert(state.results, body_output)
      state.index = state.index + 1
    else
      state.error_found = true
      state.error_item = state.items[state.index]
      state.error_message = body_error
    end
  ]],
  error_strategy = "continue",
})
local result = Workflow.execute(divide)
local last = result.final_state or {}
return {
  success = result.success, partial = result.partial_success, results = last.results, item = last.error_item,
  message = last.error_message, iterations = result.iterations, outputs = result.iteration_outputs,
}
