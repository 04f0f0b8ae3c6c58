"""Functions of Lua scripts as steps, conditions and hooks of workflows, in scripts such as were written for rs-llmspell."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.support.module_state import cleared

import stepwell
from stepwell import ExecutionFailed, Governance, Limits, Retry, step
from stepwell.flow import define, script, sequence

well = working_well

WAIT = 60
SCRIPTS = Path(__file__).with_name("origin_scripts")
calls: Counter[str] = Counter()
_cleared = cleared(calls)


@step(name="origin.calculate")
async def calculate(operation: str, a: Any, b: Any) -> Any:
    calls["calculate"] += 1
    if operation == "divide":
        if not b:
            raise ZeroDivisionError("division by zero")
        return a / b
    return a + b if operation == "add" else a * b


@step(name="origin.identify")
def identify(seed: Any) -> str:
    calls["identify"] += 1
    return f"id-{seed}"


@step(name="origin.files")
async def files(path: str) -> Any:
    return {"path": path, "files": [{"name": "a", "size": 3}, {"name": "b", "size": 4}]}


@step(name="origin.template")
async def fill(template: str, variables: dict[str, Any]) -> str:
    for name, value in variables.items():
        template = template.replace(f"{{{{ {name} }}}}", str(value))
    return template


@step(name="origin.write")
async def write(key: str, after: str) -> None:
    """Write two keys, the second one when another call has ended."""
    state = stepwell.current().state.workspace
    state.set(key, 1)
    while after and not calls[after]:  # noqa: ASYNC110 - the other call may be on another loop
        await asyncio.sleep(0.001)
    if after:
        state.set(f"{key}.2", 1)
    calls[key] += 1


@step(name="origin.fail_once")
async def fail_once() -> str:
    calls["fail_once"] += 1
    if calls["fail_once"] == 1:
        raise RuntimeError("not yet")
    return "done"


def run(well: Any, code: str, value: Any = None, **options: Any) -> Any:
    """The output of a script in a workflow of its own."""
    definition = define(f"functions-{abs(hash(code))}", script(code, name="main", **options))
    return well.start(definition, {} if value is None else value).result(WAIT)


# Scripts of the origin.

EXPECTED: dict[str, tuple[Any, Any]] = {
    "list_until_error": (
        {},
        {
            "success": True,
            "partial": True,
            "results": [20.0, 10.0, 5.0],
            "item": 0,
            "message": "division by zero",
            "iterations": 4,
            "outputs": [20.0, 10.0, 5.0, None],
        },
    ),
    "sequential_with_state": (
        {},
        {
            "success": True,
            "report": "report: 2 files of 7 bytes",
            "final": "values 50, 25",
            "steps": 5,
            "failed": 0,
            "average": 37.5,
            "saved": "/reports/id-s.txt",
            "status": "completed",
            "totals": {"files": 2, "bytes": 7},
        },
    ),
    "conditions": (
        {"hour": 13},
        {
            "executed": 1,
            "taken": "afternoon",
            "asked": [6, 12],
            "said": "good afternoon",
            "type": "json",
            "all": 2,
            "success": True,
        },
    ),
    "loops": (
        {},
        {
            "ranged": 4,
            "told": [f"{number} of 4 is id-{number}" for number in range(1, 5)],
            "over": 3,
            "done": [
                {"file": name, "hash": f"id-{name}", "index": number}
                for number, name in enumerate(["one.csv", "two.csv", "three.csv"])
            ],
            "total": 120,
            "small": 4,
            "counted": 3,
            "rounds": 4,
            "found": ["A", "B", "Finance"],
        },
    ),
    "tools_in_order": (
        {},
        {
            "success": True,
            "steps": 3,
            "final": "300.0 due",
            "took": "number",
            "text": "completed successfully",
            "failed_step": "divide",
            "partial": True,
            "succeeded": 1,
            "error": "division by zero",
            "fails": True,
        },
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_script_of_the_origin_runs_unchanged(well: Any, name: str) -> None:
    given, expected = EXPECTED[name]
    assert run(well, (SCRIPTS / f"{name}.lua").read_text(), given) == expected


def test_parallel_script_of_the_origin_runs_unchanged(well: Any) -> None:
    found = run(well, (SCRIPTS / "parallel.lua").read_text())
    aggregated = found.pop("aggregated")
    assert found == {
        "fine": 2,
        "failed": 1,
        "success": True,
        "format": "1250 users",
        "reduced": "total 210",
        "state": "total 210",
    }
    assert (aggregated["time"], aggregated["second"]) == (True, "files")
    assert [each["name"] for each in aggregated["database"]["steps"]] == ["users", "format"]


def test_default_branch_is_taken_when_no_function_says_yes(well: Any) -> None:
    found = run(well, (SCRIPTS / "conditions.lua").read_text(), {"hour": 23})
    assert (found["taken"], found["asked"], found["said"]) == ("evening", [6, 12], "good evening")


# What functions are, and what becomes of their writes.


def test_functions_see_and_change_the_locals_around_them(well: Any) -> None:
    code = """
        local breaker = {failures = 0, state = "closed"}
        local rounds = {range = {start = 1, ["end"] = 7}}
        local result = Workflow.loop{name = "breaker", iterator = rounds, error_strategy = "continue", body = {
            {name = "call", type = "custom", execute = function()
                if breaker.state == "open" then return {success = true, output = "skipped"} end
                breaker.failures = breaker.failures + 1
                if breaker.failures >= 3 then breaker.state = "open" end
                error("unavailable")
            end}}}:execute()
        return {breaker, result.data.steps_failed, result.iteration_outputs[6]}
    """
    assert run(well, code) == [{"failures": 3, "state": "open"}, 3, "skipped"]


def test_writes_of_functions_and_tools_land_with_the_script(well: Any) -> None:
    code = """
        Workflow.sequential{name = "w", steps = {
            {name = "a", tool = "origin.identify", input = {seed = 1},
             on_complete = function(result) State.set("a", result.output) end},
            {name = "b", type = "custom", execute = function() State.set("b", State.get("a") .. "!") end}}}:execute()
        return State.get("b")
    """
    started = well.start(define("functions-commit", script(code, name="main")), {})
    assert started.result(WAIT) == "id-1!"
    commits = [each for each in well.receipts(started.execution_id) if "record_step" in str(each.mutations)]
    assert len(commits) == 1
    assert [each.workflow_id for each in well.executions.list()] == ["functions-commit"]
    with pytest.raises(ExecutionFailed, match="stop"):
        run(
            well, code.replace("return State", "State.set('c', 1) error('stop') return State").replace('"a", result', '"d", result')
        )
    assert set(well.state.workspace("default").all()) == {"a", "b"}


def test_tools_at_the_same_time_keep_their_writes_apart(well: Any) -> None:
    """The tool that begins first ends last: what the other wrote meanwhile is not taken for its own."""
    code = """
        local result = Workflow.parallel{name = "w", branches = {
            {name = "a", steps = {{name = "late", tool = "origin.write", input = {key = "late", after = "early"}}}},
            {name = "b", steps = {{name = "early", tool = "origin.write", input = {key = "early", after = ""}}}}},
            on_complete = function() State.set("last", 1) end}:execute()
        return {result.data.successful_branches, State.list()}
    """
    assert run(well, code) == [2, ["early", "last", "late", "late.2"]]


def test_retried_script_runs_its_functions_again(well: Any) -> None:
    code = """
        local times = 0
        Workflow.sequential{name = "w", steps = {
            {name = "a", type = "custom", execute = function()
                times = times + 1
                State.set("times", (State.get("times") or 0) + 1)
            end},
            {name = "b", tool = "origin.fail_once"}}}:execute()
        return {times, State.get("times")}
    """
    assert run(well, code, retry=Retry(attempts=2, first_seconds=0)) == [1, 1]
    assert calls["fail_once"] == 2


def test_step_inside_of_a_script_is_retried_by_its_own_count(well: Any) -> None:
    code = """
        local tries = 0
        local again = {type = "retry", max_attempts = 3, backoff_ms = 1, backoff_multiplier = 1}
        local result = Workflow.sequential{name = "w", error_strategy = again, steps = {
            {name = "flaky", type = "custom", execute = function(context)
                tries = tries + 1
                if tries < 3 then error("attempt " .. context.attempt) end
                return {success = true, output = "done at " .. context.attempt}
            end}}}:execute()
        return {result.output, tries}
    """
    assert run(well, code) == ["done at 3", 3]


def test_function_that_says_no_success_fails_its_step(well: Any) -> None:
    code = """
        local heard = {}
        local made = Workflow.sequential{name = "w", steps = {
            {name = "weak", type = "custom", execute = function() return {success = false, output = "too short"} end}},
            on_error = function(message, name) heard[#heard + 1] = name .. ": " .. message end,
            on_complete = function(success) heard[#heard + 1] = tostring(success) end}
        local fine, reason = pcall(made.execute, made)
        return {fine, reason, heard}
    """
    expected = [False, "ExecutionFailed: workflow 'w' failed: too short", ["weak: too short", "false"]]
    assert run(well, code) == expected


def test_error_handler_of_a_step_gives_its_output_instead(well: Any) -> None:
    code = """
        local order = {}
        local result = Workflow.sequential{name = "w", steps = {
            {name = "a", tool = "origin.calculate", input = {operation = "divide", a = 1, b = 0},
             before_execute = function(context) order[#order + 1] = "before " .. context.step end,
             on_error = function(message) return {success = false, output = "instead of " .. message} end,
             after_execute = function(result) order[#order + 1] = result.output end},
            {name = "b", tool = "origin.template", input = {template = "{{step:a:output}}", variables = {}}}},
            on_step_start = function(name) order[#order + 1] = "start " .. name end}:execute()
        return {result.outputs.b, order}
    """
    told = "instead of division by zero"
    assert run(well, code) == [told, ["start a", "before a", told, "start b"]]


def test_workflows_nest_inside_of_a_script(well: Any) -> None:
    code = """
        local seen = {}
        local inner = Workflow.sequential{name = "inner", steps = {
            {name = "x", type = "custom", execute = function(context)
                seen[#seen + 1] = context.input.n
                return context.input.n * 2
            end}}}
        local outer = Workflow.sequential{name = "outer", steps = {
            {name = "in", type = "workflow", workflow = inner, input = {n = 5}},
            {name = "call", type = "custom", execute = function() return inner:execute{n = 7}.output end}}}
        local result = outer:execute()
        return {result.outputs["in"], result.output, seen}
    """
    assert run(well, code) == [10, 14, [5, 7]]


def test_function_may_run_a_stored_workflow_as_a_child(well: Any) -> None:
    well.start(define("functions-stored", sequence("origin.identify")), {"seed": 0}).result(WAIT)
    code = """
        local stored = Workflow.get("functions-stored")
        return Workflow.sequential{name = "w", steps = {
            {name = "x", type = "custom", execute = function() return stored:execute({seed = 3}).output end},
            {name = "y", type = "workflow", workflow = stored, input = {seed = 4}}}}:execute().outputs
    """
    assert run(well, code) == {"x": "id-3", "y": "id-4"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("Workflow.sequential{steps = {{tool = 'x', trace = function() end}}}", r"steps\.1\.trace is a function"),
        ("Workflow.sequential{steps = {{tool = 'x', input = {f = function() end}}}}", r"input\.f is a function"),
        ("Workflow.sequential{steps = {{tool = 'x', input = {execute = function() end}}}}", "a part of what a step gets"),
        ("Workflow.sequential{steps = {{type = 'custom', name = 'x'}}}", "custom with a function as its execute"),
        ("Workflow.sequential{on_timeout = function() end, steps = {{tool = 'x'}}}", "on_timeout is a function"),
        ("Workflow.loop{condition = 'state.x <', max_iterations = 1, body = {tool = 'x'}}", "neither an expression nor Lua"),
        ("Workflow.loop{condition = 'trigger.x <', max_iterations = 1, body = {tool = 'x'}}", "InvalidDefinition"),
        ("Workflow.conditional{condition = {type = 'custom'}, then_branch = {tool = 'x'}}", "a function as evaluate"),
    ],
)
def test_function_that_nothing_would_call_is_refused(well: Any, code: str, reason: str) -> None:
    with pytest.raises(ExecutionFailed, match=reason):
        run(well, f"return {code}")


def test_result_that_cannot_be_stored_fails_the_step_of_the_function(well: Any) -> None:
    step_table = "{name = 'a', type = 'custom', execute = function() return print end}"
    code = f"return Workflow.sequential{{name = 'w', steps = {{{step_table}}}}}:execute()"
    with pytest.raises(ExecutionFailed, match="a function cannot be stored"):
        run(well, code)


def test_governance_holds_for_tools_of_workflows_inside_of_a_script(well: Any) -> None:
    code = """
        Workflow.loop{name = "w", max_iterations = 5, body = {{name = "a", tool = "origin.identify", input = {seed = 1},
            on_complete = function() end}}}:execute()
    """
    definition = define("functions-grants", script(code))
    with pytest.raises(ExecutionFailed, match="may run 3"):
        well.start(definition, {}, governance=Governance(steps=3)).result(WAIT)


def test_workflow_that_continues_after_failures_ends_with_the_calls_of_its_script(open_well: Any) -> None:
    well = open_well("memory://", limits=Limits(script_calls=20))
    code = """
        Workflow.loop{name = "w", iterator = {range = {start = 0, ["end"] = 1000000000}}, error_strategy = "continue",
            on_complete = function() end, body = {{tool = "origin.files", input = {path = ""}}}}:execute()
    """
    with pytest.raises(ExecutionFailed, match="script_calls=20"):
        run(well, code)


def test_tools_and_questions_of_a_workflow_count_as_calls(open_well: Any) -> None:
    well = open_well("memory://", limits=Limits(script_calls=10))
    body = "{{tool = 'origin.files', input = {path = ''}}}"
    code = f"Workflow.loop{{name = 'w', while_condition = function() return true end, body = {body}}}:execute()"
    with pytest.raises(ExecutionFailed, match="script_calls=10"):
        run(well, code)


def test_hooks_get_an_input_that_has_words_of_results_as_it_is(well: Any) -> None:
    code = """
        local seen
        Workflow.sequential{name = "w", on_start = function(given) seen = given end,
            steps = {{name = "a", type = "custom", execute = function() return true end}}}:execute(input)
        return {branches = seen.branches, data = seen.data}
    """
    for given in ({"branches": 3, "data": {"branches": 2}}, {"branches": [1, "main"], "data": {"branches": [1]}}):
        assert run(well, code, given) == given
