"""Steer a run: cancel a scope or a step of it, in one commit, while the rest continues."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import Conflict, ExecutionEnded, ExecutionFailed, InvalidInput, NotFound, Retry, StepFailed, Stepwell, step, workflow
from stepwell.flow import call, define, each, edge, graph, parallel, scope, sequence, signal, subworkflow, wait

WAIT = 60
entered, gate = threading.Event(), threading.Event()
began: list[str] = []


_cleared = cleared(entered, gate, began)


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works, by the machine's clock."""
    return working_well


@step(name="part.hold")
def hold(name: str) -> str:
    began.append(name)
    entered.set()
    assert gate.wait(WAIT)
    return f"late {name}"


@step(name="part.nap")
async def nap(name: str) -> str:
    began.append(name)
    if name == "long":
        entered.set()
        await asyncio.sleep(WAIT)
    return f"{name} done"


@step(name="part.undo")
async def undo(name: str) -> None:
    began.append(f"undo {name}")


@step(name="part.flaky", retry=Retry(attempts=5, first_seconds=WAIT))
async def flaky() -> str:
    raise ConnectionError("away")


@workflow(name="part.napping")
async def napping(name: str) -> str:
    return await nap(name)


@workflow(name="part.child")
async def child(name: str) -> str:
    return await stepwell.wait_signal("go")


def both_sides() -> Any:
    left = scope(call("part.nap", "quick", name="first", compensate=call("part.undo", "first")), signal("go-left"), name="left")
    return define("part_sides", parallel(left=left, right=signal("go-right")), call("part.nap", "after", name="after"))


def statuses(run: Any) -> dict[str, str]:
    return {record.name: record.status for record in run.steps()}


def test_cancelled_scope_ends_and_the_rest_continues(well: Any):
    run = well.start(both_sides())
    until(lambda: "left" in well.load(run.execution_id).scopes and "first" in well.load(run.execution_id).steps)
    run.cancel(scope="left")
    run.signal("go-right")
    assert run.result(WAIT) == "after done"
    assert statuses(run)["left"] == "CANCELLED"
    assert began == ["quick", "undo first", "after"]


def test_scope_of_one_instance_is_cancelled_by_its_id(well: Any):
    body = scope(signal("go"), name="part")
    run = well.start(define("part_each", each(body, count=3)))
    until(lambda: {"part[0]", "part[1]", "part[2]"} <= well.load(run.execution_id).scopes.keys())
    run.cancel(scope="part[1]")
    until(lambda: "part[1]" not in well.load(run.execution_id).scopes)
    assert {"part[0]", "part[2]"} <= well.load(run.execution_id).scopes.keys()
    run.cancel(scope="part")
    run.result(WAIT)
    assert {name: status for name, status in statuses(run).items() if name.startswith("part")} == {
        f"part[{number}]": "CANCELLED" for number in range(3)
    }


def test_cancelled_step_is_recorded_and_its_late_result_discarded(well: Any):
    run = well.start(define("part_late", each(call("part.hold", "{{ item }}", name="held"), items=["a", "b"])))
    until(lambda: sorted(began) == ["a", "b"])
    run.cancel_step("held[1]")
    until(lambda: statuses(run).get("held[1]") == "CANCELLED")
    [commit] = [each for each in run.receipts() if "held[1]" in str(each.mutations) and "CANCELLED" in str(each.mutations)]
    assert "cancel_step" not in str(well.load(run.execution_id).tokens)
    gate.set()
    assert run.result(WAIT) == ["late a", None]
    assert well.verify(run.execution_id).ok
    assert commit.revision > 0


def test_losers_of_a_join_are_recorded_as_cancelled_and_their_late_results_discarded(well: Any):
    race = parallel(
        branches={
            "fast": signal("won"),
            "held": call("part.hold", "a", name="held"),
            "never": signal("never"),
            "later": "part.nap",
        },
        join="any",
        max_concurrency=3,
        name="race",
    )
    run = well.start(define("part_race", race, signal("end")))
    assert entered.wait(WAIT)
    run.signal("won", 1)
    until(lambda: "race" in well.load(run.execution_id).steps)
    run.signal("end")
    run.result(WAIT)
    gate.set()
    won = {"signal": "COMPLETED", "race": "COMPLETED", "signal-3": "COMPLETED"}
    assert statuses(run) == {**won, "held": "CANCELLED", "signal-2": "CANCELLED"}
    assert [record.output for record in run.steps() if record.status == "CANCELLED"] == [None, None]
    until(lambda: late(run) == {"held": [1]})  # after the end of the run
    assert well.verify(run.execution_id).ok
    assert run.steps()[0].to_dict().get("late_results") is not None


def late(run: Any) -> dict[str, list[int]]:
    """The attempts whose results were discarded, by step."""
    return {record.name: [each.attempt for each in record.late_results] for record in run.steps() if record.late_results}


@workflow(name="part_race_of_calls")
async def race_of_calls(is_awaited: bool) -> str:
    slow = asyncio.ensure_future(hold.aio("a"))
    await stepwell.wait_signal("enough")
    slow.cancel()
    if is_awaited:
        await asyncio.gather(slow, return_exceptions=True)
    return "gone on"


@step(name="part.slow", timeout_seconds=0.5, retry=Retry(attempts=2, first_seconds=0))
def slow_at_first(name: str) -> str:
    if stepwell.current().attempt == 1:
        entered.set()
        gate.wait(WAIT)
    return name


@workflow(name="part_slow")
async def slow_run() -> str:
    return await slow_at_first.aio("done")


@pytest.mark.parametrize("is_awaited", [True, False])
def test_late_result_of_a_call_that_the_code_cancelled_is_noted(well: Any, is_awaited: bool):
    run = well.start(race_of_calls, is_awaited)
    assert entered.wait(WAIT)
    run.signal("enough")
    assert run.result(WAIT) == "gone on"
    gate.set()
    until(lambda: late(run) == {"part.hold": [1]})
    assert statuses(run)["part.hold"] == "CANCELLED"
    assert well.verify(run.execution_id).ok


def test_late_result_of_an_attempt_that_took_too_long_is_noted(well: Any):
    run = well.start(slow_run)
    assert run.result(WAIT) == "done"
    assert late(run) == {}
    gate.set()
    until(lambda: late(run) == {"part.slow": [1]})
    assert [attempt.number for attempt in run.steps()[0].attempts] == [1, 2]


def test_what_is_under_way_in_a_cancelled_scope_is_recorded_and_what_has_not_begun_is_not(well: Any):
    nodes = {"held": call("part.hold", "a"), "after": call("part.nap", "b")}
    run = well.start(
        define("part_inside", scope(graph(nodes, [edge("held", "after")]), name="left"), call("part.nap", "c", name="c"))
    )
    assert entered.wait(WAIT)
    run.cancel(scope="left")
    assert run.result(WAIT) == "c done"
    assert statuses(run) == {"held": "CANCELLED", "left": "CANCELLED", "c": "COMPLETED"}
    gate.set()


def test_steps_of_a_cancelled_scope_that_fails_run_again_with_a_retry(well: Any):
    failing = scope(parallel(signal("go"), call("part.nap", "quick", name="nap")), name="left", on_cancel="fail")
    run = well.start(define("part_failing", failing))
    until(lambda: "nap" in well.load(run.execution_id).steps)
    run.cancel(scope="left")
    with pytest.raises(ExecutionFailed, match="scope 'left' was cancelled"):
        run.result(WAIT)
    run.retry()
    run.signal("go", "on")
    assert run.result(WAIT) == {"1": "on", "nap": "quick done"}
    assert began == ["quick"]


def test_step_that_has_not_begun_is_cancelled_when_it_does(well: Any):
    run = well.start(define("part_early", sequence(signal("go"), call("part.nap", "second", name="second"), wait("1ms"))))
    run.cancel_step("second")
    run.signal("go")
    run.result(WAIT)
    assert began == []
    assert statuses(run)["second"] == "CANCELLED"


def test_wait_and_child_of_a_definition_are_cancelled_like_steps(well: Any):
    family = parallel(waiting=signal("never", name="waiting"), family=subworkflow("part.child", "a", name="family"))
    run = well.start(define("part_waits", family, output="{{ [steps.waiting.output, steps.family.output] }}"))
    until(lambda: well.executions.list(workflow="part.child"))
    [begun] = well.executions.list(workflow="part.child")
    run.cancel_step("waiting")
    run.cancel_step("family")
    assert run.result(WAIT) == [None, None]
    until(lambda: well.run(begun.execution_id).status() == "CANCELLED")


def test_cancelled_step_of_a_function_raises_step_failed_in_its_code(well: Any):
    run = well.start(napping, "long")
    assert entered.wait(WAIT)
    run.cancel_step("part.nap")
    with pytest.raises(ExecutionFailed, match=r"'part\.nap' was cancelled"):
        run.result(WAIT)
    [record] = run.steps()
    assert (record.status, record.error and record.error.kind) == ("CANCELLED", "StepCancelled")


@workflow(name="part.forgiving")
async def forgiving() -> list[str]:
    async def one(name: str) -> str:
        try:
            return await nap(name)
        except StepFailed as error:
            return error.kind

    return await stepwell.map(one, ["quick", "long", "slow"])


def test_other_calls_of_a_function_continue(well: Any):
    run = well.start(forgiving)
    assert entered.wait(WAIT)
    run.cancel_step("2/part.nap")
    assert run.result(WAIT) == ["quick done", "StepCancelled", "slow done"]
    assert well.verify(run.execution_id).ok


@workflow(name="part.plain")
def plain(name: str) -> str:
    return nap(name)  # pyright: ignore[reportReturnType] - plain code blocks


def test_step_of_a_plain_function_is_cancelled(well: Any):
    run = well.start(plain, "long")
    assert entered.wait(WAIT)
    run.cancel_step("part.nap")
    with pytest.raises(ExecutionFailed, match="was cancelled"):
        run.result(WAIT)


@workflow(name="part.retrying")
async def retrying() -> str:
    return await flaky()


def test_step_that_waits_for_its_next_attempt_is_cancelled(well: Any):
    run = well.start(retrying)
    until(run.steps)
    run.cancel_step("part.flaky")
    with pytest.raises(ExecutionFailed, match="was cancelled"):
        run.result(WAIT)
    assert statuses(run) == {"part.flaky": "CANCELLED"}


def test_retry_makes_a_cancelled_step_of_a_function_again(well: Any):
    run = well.start(napping, "long")
    assert entered.wait(WAIT)
    run.cancel_step("part.nap")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    entered.clear()
    run.retry()
    assert entered.wait(WAIT)
    run.cancel_step("part.nap")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert began == ["long", "long"]


def test_run_of_another_process_hears_of_it(open_well: OpenWell, file_url: str):
    working, other = open_well(file_url), open_well(file_url, worker=False)
    run = working.start(napping, "long")
    assert entered.wait(WAIT)
    other.run(run.execution_id).cancel_step("part.nap")
    with pytest.raises(ExecutionFailed, match="was cancelled"):
        run.result(WAIT)


def test_wait_of_a_function_cannot_be_cancelled_alone(well: Any):
    run = well.start(child, "x")
    until(lambda: run.status() == "WAITING")
    with pytest.raises(InvalidInput, match="'signal:go' is no step"):
        run.cancel_step("signal:go")
    run.cancel()


def test_what_is_not_there_cannot_be_cancelled(well: Any):
    run = well.start(both_sides())
    until(lambda: "first" in well.load(run.execution_id).steps)
    with pytest.raises(NotFound, match="no open scope 'lft'; open are 'left'"):
        run.cancel(scope="lft")
    with pytest.raises(NotFound, match="no step 'frist'"):
        run.cancel_step("frist")
    with pytest.raises(Conflict, match="has ended as COMPLETED"):
        run.cancel_step("first")
    for name in ("left", "parallel"):
        with pytest.raises(InvalidInput, match=f"'{name}' is no step or wait"):
            run.cancel_step(name)
    run.cancel()
    until(lambda: run.status() == "CANCELLED")
    with pytest.raises(ExecutionEnded):
        run.cancel(scope="left")
    with pytest.raises(ExecutionEnded):
        run.cancel_step("after")
    well.create("hand")
    with pytest.raises(InvalidInput, match="driven by hand"):
        well.run("hand").cancel_step("x")
