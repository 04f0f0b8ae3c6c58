"""Compensation: what a run has done is undone, the last first, if it fails or is cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.support.module_state import cleared

import stepwell
from stepwell import Conflict, ExecutionCancelled, ExecutionFailed, InvalidInput, Retry, Status, Stepwell, step, workflow
from stepwell.flow import define, subworkflow

well = working_well

WAIT = 60
done: list[str] = []
refusals: list[str] = []
entered = threading.Event()


_cleared = cleared(done, refusals, entered)


@step
async def book(what: str) -> str:
    done.append(f"book {what}")
    return what


@step
def release(what: str) -> None:
    if what in refusals:
        raise ConnectionError("not now")
    done.append(f"release {what}")


@step(retry=Retry(attempts=2, first_seconds=0.4))
async def release_later(what: str) -> None:
    done.append(f"try to release {what}")
    if stepwell.current().attempt < 2:
        entered.set()
        raise ConnectionError("not yet")


@step
async def fail() -> None:
    raise RuntimeError("no seats")


@workflow
async def trip(ends: str) -> str:
    for what in ("hotel", "flight"):
        await book(what)
        stepwell.compensate(release, what)
    if ends == "fails":
        await fail()
    if ends == "raises":
        raise RuntimeError("no seats")
    if ends == "waits":
        await stepwell.wait_signal("go")
    return "booked"


@workflow
def plain_trip(ends: str) -> str:
    book("hotel")
    stepwell.compensate(release, "hotel")
    if ends == "fails":
        fail()
    return "booked"


def test_run_that_ends_well_is_not_compensated(well: Any) -> None:
    assert well.start(trip, "well").result(WAIT) == "booked"
    assert done == ["book hotel", "book flight"]


@pytest.mark.parametrize("ends", ["fails", "raises"])
def test_failed_run_undoes_what_it_did_the_last_first(well: Any, ends: str) -> None:
    run = well.start(trip, ends)
    with pytest.raises(ExecutionFailed, match="no seats"):
        run.result(WAIT)
    assert done == ["book hotel", "book flight", "release flight", "release hotel"]
    outputs = run.state().get_all_step_outputs()
    assert {"undo:release", "undo:release#2"} <= outputs.keys()
    assert well.load(run.execution_id).result["compensation"]["undone"] == ["undo:release#2", "undo:release"]
    assert run.verify().ok


@workflow(name="comp.agency")
async def agency(how: str) -> None:
    await trip(how)


@pytest.mark.parametrize("how", ["raises", "waits"])
@pytest.mark.parametrize("parent", [agency, define("comp-agency", subworkflow(trip, "{{ trigger.input }}"))])
def test_parent_is_told_what_its_child_could_not_undo(well: Any, parent: Any, how: str) -> None:
    refusals.append("flight")
    run = well.start(parent, how)
    if how == "waits":
        _wait_until(lambda: any(each.status == Status.WAITING and each.parent_id for each in well.executions.list()))
        [child] = [each for each in well.executions.list() if each.parent_id]
        well.run(child.execution_id).cancel()
    with pytest.raises((ExecutionFailed, ExecutionCancelled), match="not undone, since their compensation failed: 'undo:"):
        run.result(WAIT)


def test_plain_function_is_compensated_too(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="no seats"):
        well.start(plain_trip, "fails").result(WAIT)
    assert done == ["book hotel", "release hotel"]


def test_cancelled_run_is_compensated_and_ends_as_cancelled(well: Any) -> None:
    run = well.start(trip, "waits")
    _wait_until(lambda: run.status() == Status.WAITING)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert done == ["book hotel", "book flight", "release flight", "release hotel"]


def test_compensation_that_fails_does_not_stop_the_others_and_can_be_retried(well: Any) -> None:
    refusals.append("flight")
    run = well.start(trip, "raises")
    with pytest.raises(ExecutionFailed, match="not undone, since their compensation failed: 'undo:release#2'"):
        run.result(WAIT)
    assert done[2:] == ["release hotel"]
    assert list(well.load(run.execution_id).result["compensation"]["failed"]) == ["undo:release#2"]
    refusals.clear()
    run.retry()
    _wait_until(lambda: "release flight" in done)
    with pytest.raises(ExecutionFailed, match="no seats"):
        run.result(WAIT)
    assert done[2:] == ["release hotel", "release flight"]


def test_run_that_was_undone_cannot_be_retried(well: Any) -> None:
    run = well.start(trip, "raises")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    with pytest.raises(Conflict, match="undone; start another"):
        run.retry()


@workflow
async def two_ways() -> None:
    async def one(what: str) -> None:
        await book(what)
        stepwell.compensate(release, what)

    await asyncio.gather(one("a"), one("b"))
    await fail()


def test_branches_are_compensated_together(well: Any) -> None:
    with pytest.raises(ExecutionFailed):
        well.start(two_ways).result(WAIT)
    assert sorted(done) == ["book a", "book b", "release a", "release b"]


@workflow
async def slowly_undone() -> None:
    await book("hotel")
    stepwell.compensate(release, "hotel")
    await book("flight")
    stepwell.compensate(release_later, "flight")
    await book("car")
    stepwell.compensate(release, "car")
    await fail()


def test_compensation_goes_on_where_it_was_after_its_worker_left(file_url: str) -> None:
    """D6: a compensation that rests or is handed over is resumed, and what is undone is not undone again."""
    with Stepwell(file_url) as first:
        first.start(slowly_undone, execution_id="s")
        assert entered.wait(WAIT)
    with Stepwell(file_url) as second, pytest.raises(ExecutionFailed, match="no seats"):
        second.run("s").result(WAIT)
    undone = ["release car", "try to release flight", "try to release flight", "release hotel"]
    assert done == ["book hotel", "book flight", "book car", *undone]


def test_cancel_does_not_interrupt_a_compensation_that_is_under_way(well: Any) -> None:
    run = well.start(slowly_undone)
    assert entered.wait(WAIT)
    run.cancel()
    with pytest.raises(ExecutionFailed, match="no seats"):
        run.result(WAIT)
    assert done[3:] == ["release car", "try to release flight", "try to release flight", "release hotel"]
    assert run.status() == Status.FAILED


is_passing = threading.Event()


@workflow
async def failed_once() -> None:
    await book("hotel")
    stepwell.compensate(release_later, "hotel")
    if not is_passing.is_set():
        raise RuntimeError("a trouble that nobody recorded")
    await book("flight")


def test_run_whose_compensation_has_begun_makes_no_further_step(file_url: str) -> None:
    """Though its code would come further this time: what it would build on is being undone."""
    is_passing.clear()
    with Stepwell(file_url) as first:
        first.start(failed_once, execution_id="f")
        assert entered.wait(WAIT)
    is_passing.set()
    with Stepwell(file_url) as second, pytest.raises(ExecutionFailed, match="nobody recorded"):
        second.run("f").result(WAIT)
    assert done == ["book hotel", "try to release hotel", "try to release hotel"]


def test_compensation_is_for_the_code_of_a_workflow() -> None:
    with pytest.raises(InvalidInput, match="for the code of a workflow"):
        stepwell.compensate(release, "hotel")


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)
