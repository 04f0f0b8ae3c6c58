"""Declared workflows, started and run through the public face."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any, cast

import pytest
from tests.acceptance.conftest import OpenWell, working_well
from tests.acceptance.faces import step_records
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import Conflict, ExecutionCancelled, ExecutionFailed, InvalidInput, Retry, Status, StepStatus, step
from stepwell.flow import (
    approval,
    call,
    choice,
    define,
    each,
    http_request,
    loop,
    otherwise,
    parallel,
    parse,
    scope,
    script,
    sequence,
    signal,
    subworkflow,
    wait,
    when,
)
from stepwell.testing import crash_everywhere

well = working_well

WAIT = 60
calls: Counter[str] = Counter()
entered = threading.Event()
release = threading.Event()


_cleared = cleared(calls, entered, release)


@step(name="d.double")
async def double(number: int) -> int:
    calls["double"] += 1
    return 2 * number


@step(name="d.add")
def add(left: int, right: int) -> int:
    calls["add"] += 1
    return left + right


@step(name="d.flaky", retry=Retry(attempts=3, first_seconds=0.01))
def flaky() -> str:
    calls["flaky"] += 1
    if calls["flaky"] < 3:
        raise ConnectionError("not yet")
    return "at last"


@step(name="d.broken")
def broken(_value: Any = None) -> None:
    calls["broken"] += 1
    if not release.is_set():
        raise ValueError("broken")


@step(name="d.held")
def held(value: Any = None) -> Any:
    calls["held"] += 1
    entered.set()
    release.wait(WAIT)
    return value


@step(name="d.key")
def key() -> list[Any]:
    here: Any = stepwell.current()
    return [here.execution_id, here.idempotency_key, here.attempt]


def test_run_gives_its_result_and_its_record(well: Any) -> None:
    definition = define("d-sum", call("d.double"), call("d.add", {"left": "{{ steps['d.double'].output }}", "right": 1}))
    run = well.start(definition, 5, execution_id="sum-1")
    assert run.result(WAIT) == 11
    state = run.state()
    assert state.get_step_output("d.double").output == 10
    assert state.get_step_output("d.add").status == StepStatus.COMPLETED
    assert run.status() == Status.COMPLETED
    assert run.verify().ok
    assert run.history()
    assert well.load("sum-1").tokens == {}


def test_same_execution_id_is_the_same_run(well: Any) -> None:
    definition = define("d-once", call("d.double"))
    assert well.start(definition, 1, execution_id="x").result(WAIT) == well.start(definition, 1, execution_id="x").result(WAIT)
    with pytest.raises(Conflict, match="was started with another input"):
        well.start(definition, 9, execution_id="x")
    assert calls["double"] == 1


def test_yaml_definition_runs_like_a_built_one(well: Any) -> None:
    definition = parse("""
name: d-yaml
variables: {total: 0}
do:
  - each: {step: d.double, with: "{{ item }}"}
    items: "{{ trigger.input }}"
    name: doubled
  - set_variables: {total: "{{ sum(steps.doubled.output) }}"}
output: "{{ variables.total }}"
""")
    assert well.start(definition, [1, 2, 3]).result(WAIT) == 12


def test_branches_loops_and_choices_run(well: Any) -> None:
    definition = define(
        "d-mixed",
        parallel(a=call("d.double", 1), b=loop(call("d.double", "{{ item }}"), items=[1, 2])),
        choice(when("steps.parallel.output.a == 2", call("d.double", 21, name="chosen")), otherwise("d.broken")),
        output=["{{ steps.parallel.output }}", "{{ steps.chosen.output }}"],
    )
    assert well.start(definition).result(WAIT) == [{"a": 2, "b": [2, 4]}, 42]


def test_failed_step_is_tried_again_by_its_own_policy(well: Any) -> None:
    assert well.start(define("d-flaky", call("d.flaky"))).result(WAIT) == "at last"
    assert calls["flaky"] == 3


def test_failed_run_says_why_and_goes_on_from_there_when_retried(well: Any) -> None:
    definition = define("d-retry", call("d.double", 1), parallel(sequence(call("d.double", 2, name="before"), "d.broken"), "d.key"))
    run = well.start(definition)
    with pytest.raises(ExecutionFailed, match="ValueError: broken"):
        run.result(WAIT)
    assert run.status() == Status.FAILED
    assert well.load(run.execution_id).tokens == {}
    release.set()
    run.retry()
    assert run.result(WAIT)["d.key"][1] == f"{run.execution_id}:d.key"
    assert calls == {"double": 2, "broken": 2}
    assert run.verify().ok


def test_compensated_run_is_not_retried(well: Any) -> None:
    run = well.start(define("d-undone", call("d.double", 1, compensate=call("d.double", 3, name="undo")), "d.broken"))
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert run.state().get_step_output("undo").output == 6
    with pytest.raises(Conflict, match="compensated"):
        run.retry()


def test_steps_know_where_they_are(well: Any) -> None:
    run = well.start(define("d-where", each(call("d.key"), count=2)), execution_id="here")
    assert run.result(WAIT) == [["here", "here:d.key[0]", 1], ["here", "here:d.key[1]", 1]]


@step(name="d.write")
def write(value: int) -> int:
    here: Any = stepwell.current()
    here.state(stepwell.Scope.globals()).set("written", value)
    if value < 0:
        raise ValueError("no")
    return value


def test_state_that_a_step_writes_lands_with_its_output_or_not_at_all(well: Any) -> None:
    definition = define("d-state", call("d.write"), call("d.double", "{{ state.global.written }}"))
    assert well.start(definition, 4).result(WAIT) == 8
    with pytest.raises(ExecutionFailed):
        well.start(definition, -1).result(WAIT)
    assert well.state.globals.get("written") == 4


@step(name="d.clash")
def clash() -> int:
    here: Any = stepwell.current()
    here.state(stepwell.Scope.globals()).set_if_absent("taken", 1)
    return 1


def test_refused_state_is_the_failure_of_the_step_that_wrote_it(well: Any) -> None:
    well.state.globals.set("taken", 0)
    definition = define("d-clash", parallel(call("d.clash", on_error="continue"), call("d.double", 4), merge="list"))
    run = well.start(definition)
    assert run.result(60) == [None, 8]
    assert step_records(run)["d.clash"].status == StepStatus.FAILED


@step(name="d.unkeepable")
def unkeepable() -> Any:
    return object()


def test_output_that_cannot_be_kept_is_a_clear_failure(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="InvalidInput"):
        well.start(define("d-unkeepable", call("d.unkeepable"))).result(WAIT)


# Waits.


def test_waiting_run_rests_and_a_signal_wakes_it(well: Any) -> None:
    run = well.start(define("d-signal", signal("go"), call("d.double")))
    until(lambda: run.status() == Status.WAITING)
    run.signal("go", 21)
    assert run.result(WAIT) == 42


def test_timer_wakes_a_resting_run(well: Any) -> None:
    assert well.start(define("d-timer", wait("600ms"), call("d.double", 1))).result(WAIT) == 2


def test_approval_shows_what_is_asked_and_takes_answers(well: Any) -> None:
    run = well.start(define("d-approval", approval("Ship {{ trigger.input }}?", approvers=["ann"], details={"n": 1})), "lamp")
    until(lambda: run.status() == Status.WAITING)
    told = run.progress()
    [offer] = told.offers
    assert (offer.kind, offer.title, offer.approvers, offer.details) == ("approval", "Ship lamp?", ("ann",), {"n": 1})
    run.signal(offer.name, {"by": "ann", "is_approved": True})
    assert run.result(WAIT)["is_approved"] is True


def test_scope_that_takes_too_long_is_cancelled(well: Any) -> None:
    run = well.start(define("d-scope", scope(signal("never"), timeout="300ms", name="S"), call("d.double", 1)))
    assert run.result(WAIT) == 2
    assert run.state().get_step_output("S").status == StepStatus.CANCELLED


# Ending early.


def test_cancelled_run_stops_and_a_late_result_is_ignored(well: Any) -> None:
    run = well.start(define("d-cancel", call("d.held", 1), call("d.double")))
    assert entered.wait(WAIT)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    release.set()
    assert calls["double"] == 0
    until(lambda: not well.load(run.execution_id).tokens)
    assert {key: each.status for key, each in well.load(run.execution_id).steps.items()} == {"d.held": "CANCELLED"}


def test_step_that_takes_too_long_fails(well: Any) -> None:
    @step(name="d.forever")
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ExecutionFailed, match=r"took longer than 0\.1 s"):
        well.start(define("d-slow", call(forever, timeout_seconds=0.1))).result(WAIT)


def test_run_that_takes_too_long_fails(well: Any) -> None:
    run = well.start(define("d-late", signal("never"), timeout=0.3))
    with pytest.raises(ExecutionFailed, match="ExecutionTimedOut"):
        run.result(WAIT)


def test_script_without_an_engine_says_so(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="no script engine is installed for 'cobol'"):
        well.start(define("d-script", script("STOP RUN.", language="cobol"))).result(WAIT)


# Children.


def test_child_definition_and_child_function_give_their_results(well: Any) -> None:
    well.definitions.put(define("d-kid", call("d.double")))
    run = well.start(define("d-parent", subworkflow("d-kid", 4), subworkflow("d_function", name="fn")), execution_id="p")
    assert run.result(WAIT) == 9
    assert well.load("p:d-kid").identity.parent_id == "p"


@stepwell.workflow
async def d_function(number: int) -> int:
    return number + 1


def test_cancel_reaches_the_children(well: Any) -> None:
    well.definitions.put(define("d-waiting", signal("never")))
    run = well.start(define("d-cancelling", subworkflow("d-waiting")), execution_id="p")
    until(lambda: [each.status for each in well.executions.list(workflow="d-waiting")] == [Status.WAITING])
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    with pytest.raises(ExecutionCancelled):
        well.run("p:d-waiting").result(WAIT)


@pytest.mark.parametrize(("rule", "seen", "after"), [("isolate", 0, 1), ("inherit", 0, 1), ("copy", 1, 1), ("share", 1, 2)])
def test_child_has_of_its_parents_context_what_the_rule_says(well: Any, rule: Any, seen: int, after: int) -> None:
    child = parse(f"""
name: d-context-{rule}
variables: {{n: 0}}
do:
  - map_data: "{{{{ variables.n }}}}"
  - set_variables: {{n: 2}}
output: "{{{{ steps.map_data.output }}}}"
""")
    well.definitions.put(child)
    parent = define(
        f"d-context-of-{rule}",
        subworkflow(child, context=rule, name="kid"),
        variables={"n": 1},
        output=["{{ steps.kid.output }}", "{{ variables.n }}"],
    )
    assert well.start(parent).result(WAIT) == [seen, after]


@stepwell.workflow(name="d-sharing")
async def sharing() -> None:
    variables = stepwell.current().variables
    variables["n"] = cast("int", variables.get("n", 0)) + 1
    await stepwell.sleep(0)
    variables["late"] = "with its end"


@pytest.mark.parametrize(("rule", "after"), [("copy", [1, None]), ("share", [2, "with its end"])])
def test_function_gives_its_context_back_as_the_rule_says(well: Any, rule: Any, after: list[Any]) -> None:
    parent = define(
        f"d-sharing-{rule}",
        subworkflow("d-sharing", {}, context=rule),
        variables={"n": 1},
        output=["{{ variables.n }}", "{{ variables.late ?? null }}"],
    )
    assert well.start(parent).result(WAIT) == after


def test_shared_context_survives_a_crash_at_any_point() -> None:
    """Also if the parent finds a child that ended while nobody waited for it."""
    parent = define(
        "d-sharing-crash", subworkflow("d-sharing", {}, context="share"), variables={"n": 1}, output="{{ variables.n }}"
    )
    assert crash_everywhere(parent).result == 2


def test_unknown_subworkflow_is_a_clear_failure(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="there is no workflow 'd-nobody'"):
        well.start(define("d-orphan", subworkflow("d-nobody"))).result(WAIT)


# Progress.


def test_progress_says_how_far_it_is_and_what_it_waits_for(well: Any) -> None:
    run = well.start(
        define("d-progress", call("d.double", 1), parallel(call("d.held", 2), signal("go")), call("d.double", 3, name="last"))
    )
    assert entered.wait(WAIT)
    until(lambda: run.progress().current == ("d.held",))
    told = run.progress()
    assert (told.percent, told.total, told.status) == (25.0, 4, Status.RUNNING)
    assert [(each.kind, each.name) for each in told.waiting] == [("signal", "go")]
    assert [offer.name for offer in told.offers] == ["go"]
    release.set()
    run.signal("go")
    run.result(WAIT)
    assert run.progress().percent == 100
    assert run.progress().current == ()


def test_input_is_refused_as_invalid_before_anything_is_stored(well: Any) -> None:
    definition = define("d-schema", call("d.double"), input_schema={"type": "integer", "minimum": 1})
    with pytest.raises(InvalidInput, match="must be integer, and is string"):
        well.start(definition, "many", execution_id="no")
    assert well.executions.list() == []


# Retrying, handing back and limits.


def test_retry_goes_on_inside_a_loop_and_keeps_what_it_did(well: Any) -> None:
    body = sequence(call("d.double", "{{ item }}"), choice(when("item == 2", "d.broken"), otherwise(call("d.key"))))
    run = well.start(define("d-retry-loop", loop(body, items=[1, 2, 3]), call("d.double", 50, name="end")))
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    release.set()
    run.retry()
    assert run.result(WAIT) == 100
    assert calls["double"] == 4
    assert [name for name in run.state().get_all_step_outputs() if name.startswith("d.broken")] == ["d.broken[1]"]


def test_retry_begins_failed_branches_again_and_not_those_that_succeeded(well: Any) -> None:
    branches = parallel(sequence(call("d.double", 1), "d.broken"), call("d.double", 2, name="good"), fail_fast=False, merge="list")
    run = well.start(define("d-retry-wide", branches))
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    release.set()
    run.retry()
    assert run.result(WAIT) == [None, 4]
    assert calls == {"double": 2, "broken": 2}


def test_retry_retries_the_failed_child_in_place(well: Any) -> None:
    well.definitions.put(define("d-failing-kid", "d.broken"))
    run = well.start(define("d-retry-kid", subworkflow("d-failing-kid", name="kid")), execution_id="p")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    release.set()
    run.retry()
    assert run.result(WAIT) is None
    assert well.run("p:kid").status() == Status.COMPLETED


def test_closing_finishes_the_step_and_another_worker_goes_on(open_well: OpenWell, file_url: str) -> None:
    """T42."""
    first = open_well(file_url)
    run_id = first.start(define("d-drained", call("d.held", 5), call("d.double"))).execution_id
    assert entered.wait(WAIT)
    threading.Timer(0.2, release.set).start()
    first.close()
    second = open_well(file_url)
    assert second.run(run_id).result(WAIT) == 10
    assert calls == {"held": 1, "double": 1}


def test_governance_holds_for_declared_runs_and_never_for_what_undoes(well: Any) -> None:
    definition = define("d-governed", call("d.double", 1, compensate=call("d.double", 2, name="undo")), "d.key", "d.flaky")
    run = well.start(definition, governance=stepwell.Governance(steps=1))
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        run.result(WAIT)
    assert run.state().get_step_output("undo").status == StepStatus.COMPLETED


def test_result_of_a_first_branch_is_taken_while_the_loser_hangs(well: Any) -> None:
    run = well.start(define("d-race", parallel(call("d.held", 1), call("d.double", 4), join="any")))
    assert run.result(WAIT) == {"d.double": 8}
    release.set()


def test_hand_made_commit_between_two_steps_does_not_disturb_the_run(well: Any) -> None:
    run = well.start(define("d-disturbed", call("d.held", 1), call("d.double", "{{ variables.n }}")))
    assert entered.wait(WAIT)
    with well.transaction(run.execution_id) as tx:
        tx.set_variable("n", 7)
    release.set()
    assert run.result(WAIT) == 14
    assert run.verify().ok


def test_signal_that_was_taken_does_not_count_again_after_a_disturbance(well: Any) -> None:
    run = well.start(define("d-once-only", signal("go"), call("d.held", 1), signal("go", name="again")))
    run.signal("go", 1)
    assert entered.wait(WAIT)
    with well.transaction(run.execution_id) as tx:
        tx.set_variable("n", 7)
    release.set()
    until(lambda: run.status() == Status.WAITING)
    run.signal("go", 2)
    assert run.result(WAIT) == 2


def test_request_to_an_inner_address_fails_the_run_and_is_not_tried_again(well: Any) -> None:
    request = http_request("http://127.0.0.1:9/", secret_headers={"authorization": "hush"}, retry=Retry(attempts=5))
    run = well.start(define("d-inner", request))
    with pytest.raises(ExecutionFailed, match="AddressRefused"):
        run.result(WAIT)
    assert len(step_records(run)["http_request"].attempts) == 1
    assert "hush" not in str(run.history())


@step(name="d.anything")
def anything(first: int = 1, *values: Any, **more: Any) -> list[Any]:
    return [list(values), first, more]


@pytest.mark.parametrize(("given", "seen"), [({"first": 5}, [[], 5, {}]), (7, [[], 7, {}])])
def test_arguments_come_by_name_or_as_the_first(well: Any, given: Any, seen: Any) -> None:
    assert well.start(define(f"d-args-{given}", call("d.anything", given))).result(WAIT) == seen


def test_missing_arguments_are_a_clear_failure(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match=r"'d\.add' takes an object with left, right"):
        well.start(define("d-missing", call("d.add", {"left": 1}))).result(WAIT)
