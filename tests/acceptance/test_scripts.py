"""Lua scripts as nodes of declared workflows: what they can call, and what becomes of their writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import ExecutionFailed, Governance, Limits, Retry, Scope, step, workflow
from stepwell.flow import (
    call,
    choice,
    define,
    loop,
    otherwise,
    parallel,
    parse,
    render,
    script,
    set_variables,
    signal,
    when,
)
from stepwell.flow.definition.document_writer import plain_definition

well = working_well

WAIT = 60
calls: Counter[str] = Counter()
_cleared = cleared(calls)


@step(name="script.double")
async def double(number: int) -> int:
    calls["double"] += 1
    return 2 * number


@step(name="script.note", effect="mail")
async def note(key: str) -> Any:
    """Write what the script wrote under another key."""
    state = stepwell.current().state(Scope.of_workspace("default"))
    seen = await state.get("before")
    state.set(key, seen)
    return seen


@step(name="script.fail_once")
def fail_once() -> str:
    calls["fail_once"] += 1
    if calls["fail_once"] == 1:
        raise RuntimeError("not yet")
    return "done"


@step(name="script.add")
def add(a: int, b: int) -> int:
    return a + b


@step(name="script.see")
def see(number: int) -> None:
    calls[f"number {number}"] += 1


@step(name="script.break")
def break_down() -> None:
    raise RuntimeError("broken")


@step(name="script.hang")
async def hang() -> None:
    calls["hang"] += 1
    await asyncio.Event().wait()


@workflow(name="script.child")
async def child(number: int) -> int:
    calls["child"] += 1
    return await double(number)


def run(well: Any, code: str, value: Any = None, **options: Any) -> Any:
    """The output of a script in a workflow of its own."""
    given = {} if value is None else value
    return well.start(define(f"script-{abs(hash(code))}", script(code, **options)), given).result(WAIT)


# Values and state.


def test_script_gets_its_input_and_gives_its_output(well: Any) -> None:
    given = {"list": [1, 2.5, "three", True, None, []], "object": {"a": {}}}
    assert run(well, "return input", given) == given
    assert run(well, "local given = ... return given.list[2]", given) == 2.5
    assert run(well, "local unused = 1") is None


def test_whole_numbers_and_floats_stay_what_they_are(well: Any) -> None:
    found = run(well, "return {input.whole, input.float, 7 // 2, 6 / 2, input.large}", {"whole": 1, "float": 1.0, "large": 2**62})
    assert [(type(each), each) for each in found] == [(int, 1), (float, 1.0), (int, 3), (float, 3.0), (int, 2**62)]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("return function() end", "a function cannot be stored"),
        ("local t = {} t.t = t return t", "contains itself"),
        ("return 0/0", "infinite or not a number"),
        ("return {[1.5] = 1}", "has the key 1.5"),
        ("return {1, nil, 3, x = 1}", "has the key 1"),
        ("return '\\xff'", "not UTF-8"),
        ("return State", "Stepwell's own tables"),
    ],
)
def test_what_cannot_be_stored_is_no_output(well: Any, code: str, reason: str) -> None:
    with pytest.raises(ExecutionFailed, match=reason):
        run(well, code)


def test_one_argument_less_is_the_state_of_the_workspace(well: Any) -> None:
    run(
        well,
        """
        State.set("seed", {retries = 3})
        State.save("custom", "pipeline:status", "running")
        State.save("conversation:talk", "colour", "red")
        State.agent_set("writer", "mood", "good")
        workflow.state.set("config", 1)
        step.state.set("progress", 0.5)
        """,
        name="main",
    )
    assert well.state.workspace("default").get("seed") == {"retries": 3}
    assert well.state.custom("custom").get("pipeline:status") == "running"
    assert well.state.conversation("talk").get("colour") == "red"
    assert well.state.custom("agent:writer").get("mood") == "good"


def test_script_reads_what_it_has_written(well: Any) -> None:
    code = """
        State.set("a", 1) State.set("b", 2)
        local had, had_not = State.delete("a"), State.delete("c")
        State.save("other", "x", 1)
        workflow.state.set("mine", "w") step.state.set("mine", "s")
        return {State.get("a") == nil, State.load("global", "b"), State.list(), State.list_keys("other"), had, had_not,
                workflow.state.get("mine"), step.state.get("mine"), workflow.state.list()}
    """
    assert run(well, code) == [True, 2, ["b"], ["x"], True, False, "w", "s", ["mine"]]


def test_writes_of_a_failed_script_are_not_stored(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="script:1: stop"):
        run(well, "State.set('a', 1) State.save('other', 'b', 2) Tool.execute('script.note', {key = 'c'}) error('stop')")
    assert list(well.state.workspace("default").all()) == []
    assert list(well.state.custom("other").all()) == []


def test_writes_and_output_land_in_one_commit(well: Any) -> None:
    started = well.start(define("script-commit", script("State.set('a', 1) State.set('b', 2) return 3", name="main")), {})
    started.result(WAIT)
    commits = [each for each in well.receipts(started.execution_id) if "record_step" in str(each.mutations)]
    assert len(commits) == 1
    assert well.state.workspace("default").get("a") == 1


def test_script_of_a_workspace_reaches_only_that_workspace(well: Any) -> None:
    code = "local seen = State.get('secret') State.set('secret', workflow.execution_id) return seen"
    definition = define("script-tenant", script(code))
    for name in ("acme", "other"):
        well.workspaces.put(name)
    first = well.start(definition, {}, workspace="acme")
    assert first.result(WAIT) is None
    assert well.start(definition, {}, workspace="other").result(WAIT) is None
    assert well.state.workspace("acme").get("secret") == first.execution_id
    assert well.state.globals.get("secret") is None


def test_key_that_no_store_takes_is_an_error_the_script_can_catch(well: Any) -> None:
    found = run(well, "local ok, reason = pcall(State.set, string.rep('k', 1000), 1) return {ok, reason}")
    assert found[0] is False
    assert "a state key" in found[1]


# Time and order.


def test_time_stands_still_inside_of_a_script(well: Any) -> None:
    code = """
        local leap = os.time{year = 2000, month = 2, day = 29, hour = 0}
        return {os.time() == os.time(), os.date("%Y-%m-%dT%H:%M:%S", 951782400), leap, os.clock()}
    """
    assert run(well, code) == [True, "2000-02-29T00:00:00", 951782400, 0.0]


def test_pairs_come_in_one_order(well: Any) -> None:
    code = """
        local keys = {}
        for key in pairs({pear = 1, apple = 2, [3] = 3, fig = 4}) do keys[#keys + 1] = tostring(key) end
        return keys
    """
    assert run(well, code) == ["3", "apple", "fig", "pear"]


def test_random_numbers_are_the_same_in_every_attempt(well: Any) -> None:
    code = "Tool.execute('script.see', {number = math.random(1, 1000000)}) Tool.execute('script.fail_once')"
    well.start(define("script-random", script(code, retry=Retry(attempts=2, first_seconds=0))), {}).result(WAIT)
    assert list(calls.values()) == [2, 2]


# Tools.


def test_tools_are_registered_steps_and_land_with_the_script(well: Any) -> None:
    code = """
        State.set("before", "seen")
        return {Tool.execute("script.double", {number = 4}), Tool.invoke("script.note", {key = "after"}), State.get("after"),
                Tool.exists("script.double"), Tool.exists("no.such"), Tool.get("script.double"):execute({number = 1})}
    """
    assert run(well, code) == [8, "seen", "seen", True, False, 2]
    assert well.state.workspace("default").get("after") == "seen"


def test_failure_of_a_tool_is_an_error_the_script_can_catch(well: Any) -> None:
    assert run(well, "local ok, reason = pcall(Tool.execute, 'script.break') return {ok, reason}") == [
        False,
        "RuntimeError: broken",
    ]
    with pytest.raises(ExecutionFailed, match=r"there is no tool 'no\.such'"):
        run(well, "Tool.execute('no.such')")


def test_governance_holds_for_the_tools_of_a_script(well: Any) -> None:
    definition = define("script-grants", script("return Tool.execute('script.note', {key = 'k'})"))
    with pytest.raises(ExecutionFailed, match="effects of kind 'mail'"):
        well.start(definition, {}, governance=Governance(effects=("script",))).result(WAIT)
    many = define("script-many", script("for i = 1, 5 do Tool.execute('script.double', {number = i}) end"))
    with pytest.raises(ExecutionFailed, match="may run 3"):
        well.start(many, {}, governance=Governance(steps=3)).result(WAIT)


def test_script_is_retried_and_recorded_once(well: Any) -> None:
    definition = define("script-retry", script("return Tool.execute('script.fail_once')", retry=Retry(attempts=2, first_seconds=0)))
    assert well.start(definition, {}).result(WAIT) == "done"
    assert calls["fail_once"] == 2


def test_script_that_waits_for_a_tool_is_cancelled_with_its_run(well: Any) -> None:
    started = well.start(define("script-cancel", script("State.set('a', 1) Tool.execute('script.hang')")), {})
    until(lambda: calls["hang"])
    started.cancel()
    with pytest.raises(stepwell.ExecutionCancelled):
        started.result(WAIT)
    assert well.state.workspace("default").get("a") is None


# Workflows.


def definition_in_lua(well: Any, code: str) -> Any:
    return run(well, f"return {code}:get_info().definition")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            """Workflow.sequential{name = "w", description = "d", timeout_ms = 5000, steps = {
                {name = "a", type = "tool", tool = "script.double", input = {number = "{{ trigger.input.x }}"}, retry_count = 2},
                {name = "b", type = "agent", agent = "writer", timeout_ms = 500}}}""",
            define(
                "w",
                call("script.double", {"number": "{{ trigger.input.x }}"}, name="a", retry=Retry(attempts=3)),
                call("writer", name="b", timeout_seconds=0.5),
                description="d",
                timeout=5,
            ),
        ),
        (
            """Workflow.parallel{name = "p", max_concurrency = 2, branches = {
                {name = "one", steps = {{tool = "x"}, {tool = "y"}}}, {name = "two", required = false, steps = {{tool = "z"}}}}}""",
            define(
                "p",
                parallel(branches={"one": stepwell.flow.sequence("x", "y"), "two": "z"}, optional=["two"], max_concurrency=2),
            ),
        ),
        (
            """Workflow.conditional{name = "c", condition = {type = "and", conditions = {
                {type = "step_output_equals", step_name = "a", expected_output = "big"}, "trigger.input.x > 1"}},
                then_branch = {{tool = "x"}}, else_branch = {{tool = "y"}}}""",
            None,
        ),
        (
            """Workflow.conditional{name = "c", condition = {type = "shared_data_equals", key = "k", expected_value = 1},
                initial_state = {k = 1}, then_branch = {{tool = "x"}}, else_branch = {{tool = "y"}}}""",
            define("c", choice(when("variables.k == 1", "x"), otherwise("y")), variables={"k": 1}),
        ),
        (
            """Workflow.builder():name("l"):loop():with_range({start = 1, ["end"] = 4, step = 1}):max_iterations(9)
                :add_step({name = "d", tool = "script.double", input = {number = "$item"}}):build()""",
            define("l", loop(call("script.double", {"number": "{{ item }}"}, name="d"), range=(1, 4, 1), max_iterations=9)),
        ),
        (
            """Workflow.loop{name = "s", condition = "variables.n < 3", max_iterations = 5, initial_state = {n = 0},
                body = {{tool = "x"}}, state_update = {n = "{{ variables.n + 1 }}"}}""",
            define(
                "s",
                loop("x", set_variables(n="{{ variables.n + 1 }}"), while_="variables.n < 3", max_iterations=5),
                variables={"n": 0},
            ),
        ),
        (
            """Workflow.loop{name = "s", condition = "state.n < 3", max_iterations = 5, initial_state = {n = 0},
                body = {name = "a", tool = "x"}, state_update = [[
                    state.n = body_output  -- the newest
                    state.is_big = (body_output >= state.n + iteration);
                ]]}""",
            define(
                "s",
                loop(
                    call("x", name="a"),
                    set_variables(n="{{ steps.a.output }}"),
                    set_variables(is_big="{{ (steps.a.output >= variables.n + index) }}"),
                    while_="variables.n < 3",
                    max_iterations=5,
                ),
                variables={"n": 0},
            ),
        ),
        (
            """Workflow.loop{name = "s", max_iterations = 5, body = {tool = "x"}, state_update = "if body_success then x( end"}""",
            None,
        ),
    ],
    ids=["sequential", "parallel", "fault", "conditional", "builder", "loop", "lines", "code"],
)
def test_definitions_made_in_lua_are_those_of_python(well: Any, code: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ExecutionFailed, match="InvalidDefinition"):
            definition_in_lua(well, code)
    else:
        assert definition_in_lua(well, f"({code})") == plain_definition(expected)


def test_script_runs_a_workflow_and_gets_the_outputs_of_its_steps(well: Any) -> None:
    code = """
        local made = Workflow.sequential{name = "twice", steps = {
            {name = "a", tool = "script.double", input = {number = "{{input.x}}"}},
            {name = "b", tool = "script.double", input = {number = "{{step.a.result}}"}}}}
        local seen = {}
        made:on_before_execute(function(given) seen[1] = given.x end)
        made:on_after_execute(function(result) seen[2] = result.output end)
        local result = made:execute({x = 3})
        return {result.success, result.output, result.outputs, made:get_output("a"), made:list_outputs(), seen, result.text}
    """
    outputs = {"a": 6, "b": 12}
    assert run(well, code) == [True, 12, outputs, 6, ["a", "b"], [3, 12], "workflow twice completed successfully with 2 steps"]


NAMES = {
    "State": "save load set get delete list list_keys workflow_get workflow_list agent_get agent_set tool_get tool_set migrate "
    "get_migration_status get_schema_versions create_backup list_backups restore_backup validate_backup get_storage_usage "
    "cleanup_backups",
    "Workflow": "builder sequential parallel conditional loop list get remove register clear types discover_types execute",
    "Workflow.builder()": "name description sequential parallel conditional loop loop_workflow error_strategy timeout_ms add_step "
    "add_template_step condition add_then_step add_else_step add_branch with_range with_collection with_while loop_condition "
    "max_iterations max_concurrency build",
    "Workflow.sequential{name = 'w', steps = {{name = 'a', tool = 'script.double', input = {number = 1}}}}": "type name id execute "
    "get_info get_state set_state set_shared_data on_before_execute on_after_execute on_error get_output get_all_outputs "
    "list_outputs clear_outputs get_execution_id emit debug validate get_metrics",
    "workflow.state": "get set delete list",
    "step.state": "get set delete list",
    "os": "time date",
}
"""Functions that scripts of the origin call, by their object."""


def test_every_name_that_scripts_of_the_origin_call_is_there(well: Any) -> None:
    lists = ", ".join(f"{{{where}, '{names}'}}" for where, names in NAMES.items())
    code = f"""
        local missing = {{}}
        for _, pair in ipairs({{{lists}}}) do
            for name in pair[2]:gmatch("[%w_]+") do
                if pair[1][name] == nil then missing[#missing + 1] = name end
            end
        end
        return missing
    """
    assert run(well, code) == {}


def test_script_finds_the_outputs_of_what_it_executed_in_its_state(well: Any) -> None:
    code = """
        local made = Workflow.sequential{name = "once", steps = {{name = "a", tool = "script.double", input = {number = 4}}}}
        local id = made:execute{}.execution_id
        made:emit("done", 1)
        local found = {State.workflow_get(id, "a"), State.workflow_list(id), State.workflow_get(made.id, "a")}
        return {found, made:get_execution_id() == id, State.workflow_get(id, "none") == nil}
    """
    assert run(well, code) == [[8, ["a"], 8], True, True]


def test_state_of_a_workflow_that_is_not_for_the_script_is_empty(well: Any) -> None:
    well.state.workflow("script.others").set("k", 1)
    code = "return {State.workflow_get('script.others', 'k') == nil, #State.workflow_list('script.others')}"
    assert run(well, code) == [True, 0]
    with pytest.raises(ExecutionFailed, match="cannot reach the state of workflow"):
        run(well, "return State.load('workflow:script.others', 'k')")


def test_script_gets_the_variables_and_rounds_of_a_loop(well: Any) -> None:
    code = """
        local result = Workflow.loop{name = "sum", condition = "iteration <= 10", initial_state = {sum = 0},
            body = {name = "add", tool = "script.add", input = {a = "$state.sum", b = "$iteration"}},
            state_update = "state.sum = body_output"}:execute{}
        return {result.final_state.sum, result.iterations}
    """
    assert run(well, code) == [55, 11]


def test_workflows_nest_and_functions_run_as_children(well: Any) -> None:
    code = """
        local inner = Workflow.builder():name("inner"):sequential():add_step{name = "d", tool = "script.double"}:build()
        local step = {name = "in", type = "workflow", workflow = inner, input = {number = 5}}
        local outer = Workflow.sequential{name = "outer", steps = {step}}
        return {outer:execute{}.output, Workflow.get("script.child"):execute(4).output, Workflow.get("no.such") == nil}
    """
    assert run(well, code) == [10, 8, True]


def test_retried_script_finds_the_workflow_that_it_has_started(well: Any) -> None:
    code = "local found = Workflow.get('script.child'):execute(4).output Tool.execute('script.fail_once') return found"
    definition = define("script-again", script(code, retry=Retry(attempts=2, first_seconds=0)))
    assert well.start(definition, {}).result(WAIT) == 8
    assert (calls["child"], calls["fail_once"]) == (1, 2)


def test_scripts_that_wait_for_scripts_take_no_room_from_each_other(open_well: Any) -> None:
    code = """
        local left = input.depth - 1
        if left == 0 then return 0 end
        return Workflow.get("script-deep"):execute{depth = left}.output + 1
    """
    well = open_well("memory://", concurrency=1)
    assert well.start(define("script-deep", script(code)), {"depth": 6}).result(WAIT) == 5


def test_well_closes_while_a_script_waits_for_a_workflow(open_well: Any, file_url: str) -> None:
    definition = define("script-closing", script("return Workflow.get('script-waiting'):execute({}).output"))
    with stepwell.Stepwell(file_url) as well:
        well.definitions.put(define("script-waiting", signal("go")))
        well.start(definition, {}, execution_id="closing")
        until(lambda: any(each.workflow_id == "script-waiting" for each in well.executions.list()))
    with stepwell.Stepwell(file_url) as well:
        [waiting] = [each for each in well.executions.list() if each.workflow_id == "script-waiting"]
        well.run(waiting.execution_id).signal("go", 7)
        assert well.run("closing").result(WAIT) == 7


def test_failed_workflow_is_an_error_the_script_can_catch(well: Any) -> None:
    code = """
        local made, told = Workflow.sequential{name = "w", steps = {{tool = "script.break"}}}, nil
        made:on_error(function(reason) told = reason end)
        local ok = pcall(made.execute, made, {})
        return {ok, told ~= nil}
    """
    assert run(well, code) == [False, True]


# Errors and limits.


def test_error_of_a_script_names_its_line(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="ScriptFailed: script:2: wrong"):
        run(well, "local x = 1\nerror('wrong')")
    with pytest.raises(ExecutionFailed, match="not written correctly: script:1: unexpected symbol"):
        run(well, "x = = 1")


def test_script_that_calls_too_often_is_stopped(open_well: Any) -> None:
    well = open_well("memory://", limits=Limits(script_calls=10))
    with pytest.raises(ExecutionFailed, match="script_calls=10"):
        run(well, "State.set('a', 1) while true do pcall(State.get, 'x') end")
    assert well.state.workspace("default").get("a") is None


def test_script_node_is_written_and_read(well: Any) -> None:
    definition = define("script-text", script("return 1 -- eins", {"a": 1}, name="main", timeout_seconds=3))
    assert parse(render(definition)) == definition


def test_what_a_script_prints_is_logged(well: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stepwell.script")
    run(well, "print('one', 2, {}) Logger.warn('three\\nfour')", name="main")
    assert [(each.levelname, each.getMessage().split(": ", 1)[1]) for each in caplog.records if each.name == "stepwell.script"] == [
        ("INFO", "one 2   table"),
        ("WARNING", "three"),
        ("WARNING", "four"),
    ]


def test_admin_calls_of_older_scripts_say_what_to_do(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match=r"State\.create_backup is not for scripts"):
        run(well, "State.create_backup(true)")
