"""Retrying a parent retries its failed child in place, whichever of the two is a function and whichever is declared."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from tests.support.module_state import cleared

import stepwell
from stepwell import ExecutionFailed, NotFound, Retry, Status, Stepwell, step, workflow
from stepwell.flow import call, deferred, define, each, subworkflow, throw

WAIT = 60
calls: Counter[str] = Counter()
mended: set[str] = set()

_cleared = cleared(calls, mended)

ONCE = Retry(attempts=1)


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    working_well.definitions.put(DECLARED_KID)
    working_well.definitions.put(DECLARED_UNDOING)
    return working_well


@step(name="again.note")
async def note(name: str) -> str:
    calls[name] += 1
    return name


@step(name="again.break", retry=ONCE)
async def breaks(name: str) -> str:
    calls[name] += 1
    if name not in mended:
        raise ValueError(f"{name} is broken")
    return name


@workflow(name="again.function")
async def kid() -> str:
    await note("first")
    await stepwell.wait_signal("go")
    return await breaks("last")


DECLARED_KID = define(
    "again-declared",
    call(note, "first"),
    deferred({"go": call(breaks, "last", name="last"), "other": throw("no")}, name="chosen"),
    output="{{ steps.last.output }}",
)


@workflow(name="again.parent")
async def parent() -> str:
    return await kid()


@workflow(name="again.middle")
async def middle() -> str:
    return await note("middle") + await kid()


WAYS = pytest.mark.parametrize(
    ("way", "child_id"),
    [
        (parent, "p:1"),
        (define("again-of-function", subworkflow(kid, name="kid"), output="{{ steps.kid.output }}"), "p:kid"),
        (define("again-of-declared", subworkflow(DECLARED_KID, name="kid"), output="{{ steps.kid.output }}"), "p:kid"),
    ],
    ids=["function", "function of declared", "declared of declared"],
)


def failed(well: Stepwell, way: Any, child_id: str, name: str = "last") -> Any:
    """A parent whose child has failed, after which what was broken is mended."""
    run = well.start(way, execution_id="p")
    _wait_until(lambda: _status(well, child_id) == Status.WAITING)
    well.run(child_id).signal("go")
    with pytest.raises(ExecutionFailed, match="is broken"):
        run.result(WAIT)
    mended.add(name)
    return run


@WAYS
def test_retried_parent_keeps_the_completed_steps_of_its_failed_child(well: Stepwell, way: Any, child_id: str) -> None:
    run = failed(well, way, child_id)
    run.retry()
    assert run.result(WAIT) == "last"
    assert calls == {"first": 1, "last": 2}
    assert [each.execution_id for each in well.executions.list() if each.parent_id] == [child_id]
    assert all(well.verify(each).ok for each in ("p", child_id))


@WAYS
def test_child_that_fails_again_after_a_retry_fails_its_parent_again(well: Stepwell, way: Any, child_id: str) -> None:
    run = failed(well, way, child_id)
    for attempt in (3, 4):
        mended.clear()
        run.retry()
        with pytest.raises(ExecutionFailed, match="is broken"):
            run.result(WAIT)
        assert calls == {"first": 1, "last": attempt - 1}
    mended.add("last")
    run.retry()
    assert run.result(WAIT) == "last"


@WAYS
def test_child_that_was_retried_by_hand_is_taken_as_it_is(well: Stepwell, way: Any, child_id: str) -> None:
    run = failed(well, way, child_id)
    well.run(child_id).retry()
    assert well.run(child_id).result(WAIT) == "last"
    run.retry()
    assert run.result(WAIT) == "last"
    assert calls == {"first": 1, "last": 2}


@WAYS
def test_parent_from_the_queue_retries_its_child_once_it_has_a_slot(well: Stepwell, way: Any, child_id: str) -> None:
    item = well.enqueue(way, execution_id="p")
    _wait_until(lambda: _status(well, child_id) == Status.WAITING)
    well.run(child_id).signal("go")
    with pytest.raises(ExecutionFailed, match="is broken"):
        item.result(WAIT)
    mended.add("last")
    well.queue.pause()
    well.run("p").retry()
    assert well.run(child_id).status() == Status.FAILED
    well.queue.resume()
    assert well.run("p").result(WAIT) == "last"
    assert calls == {"first": 1, "last": 2}


@WAYS
def test_fork_of_a_retried_parent_has_a_child_of_its_own(well: Stepwell, way: Any, child_id: str) -> None:
    run = failed(well, way, child_id)
    retried_at = well.load("p").revision + 1
    run.retry()
    assert run.result(WAIT) == "last"
    revision = well.load(child_id).revision
    well.fork("p", "copy", at=retried_at)
    own = "copy:1" if way is parent else "copy:kid~1"
    _wait_until(lambda: _status(well, own) == Status.WAITING)
    well.run(own).signal("go")
    assert well.run("copy").result(WAIT) == "last"
    assert well.load(child_id).revision == revision


def test_retry_goes_down_to_the_grandchild_that_failed(well: Stepwell) -> None:
    run = failed(well, define("again-grandparent", subworkflow(middle, name="kid"), output="{{ steps.kid.output }}"), "p:kid:2")
    run.retry()
    assert run.result(WAIT) == "middlelast"
    assert calls == {"middle": 1, "first": 1, "last": 2}


def test_all_failed_children_of_branches_are_retried_in_place(well: Stepwell) -> None:
    """One fails while others go on, so that its token is gone long before the parent ends."""
    well.definitions.put(define("again-named", call(note, "{{ trigger.input }}"), call(breaks, "broken {{ trigger.input }}")))
    kids = each(subworkflow("again-named", "{{ item }}", name="kid"), items=["a", "b", "c"], concurrency=2, fail_fast=False)
    run = well.start(define("again-many", kids), execution_id="p")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    mended.update(f"broken {name}" for name in "abc")
    run.retry()
    run.result(WAIT)
    assert calls == dict.fromkeys("abc", 1) | {f"broken {name}": 2 for name in "abc"}
    assert sorted(each.execution_id for each in well.executions.list() if each.parent_id) == ["p:kid[0]", "p:kid[1]", "p:kid[2]"]


# Children that were compensated.


@step(name="again.undo", retry=ONCE)
async def undo(name: str) -> str:
    return await breaks(f"undo {name}")


@workflow(name="again.undoing")
async def undoing() -> str:
    stepwell.compensate(undo, await note("first"))
    return await breaks("last")


@workflow(name="again.parent-of-undoing")
async def parent_of_undoing() -> str:
    return await undoing()


DECLARED_UNDOING = define(
    "again-undoing",
    call(note, "first", compensate=call(undo, "first", name="undo")),
    call(breaks, "last", name="last"),
    output="{{ steps.last.output }}",
)
UNDONE = pytest.mark.parametrize(
    ("way", "first_id", "second_id"),
    [
        (parent_of_undoing, "p:1", "p:1~1"),
        (define("again-undone", subworkflow(undoing, name="kid"), output="{{ steps.kid.output }}"), "p:kid", "p:kid~1"),
        (define("again-undone2", subworkflow(DECLARED_UNDOING, name="kid"), output="{{ steps.kid.output }}"), "p:kid", "p:kid~1"),
    ],
    ids=["function", "function of declared", "declared of declared"],
)


@UNDONE
def test_another_child_is_started_for_one_that_was_compensated(well: Stepwell, way: Any, first_id: str, second_id: str) -> None:
    mended.add("undo first")
    run = well.start(way, execution_id="p")
    with pytest.raises(ExecutionFailed, match="last is broken"):
        run.result(WAIT)
    mended.add("last")
    run.retry()
    assert run.result(WAIT) == "last"
    assert calls == {"first": 2, "undo first": 1, "last": 2}
    assert [well.run(each).status() for each in (first_id, second_id)] == [Status.FAILED, Status.COMPLETED]


@UNDONE
def test_failed_compensation_of_a_child_is_made_by_the_retry_of_its_parent(
    well: Stepwell, way: Any, first_id: str, second_id: str
) -> None:
    run = well.start(way, execution_id="p")
    with pytest.raises(ExecutionFailed, match="not undone"):
        run.result(WAIT)
    mended.update(("undo first", "last"))
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert calls == {"first": 1, "undo first": 2, "last": 1}
    assert well.load(first_id).result["compensation"]["failed"] == {}
    run.retry()
    assert run.result(WAIT) == "last"
    assert calls == {"first": 2, "undo first": 2, "last": 2}
    ended = {each.execution_id: each.status for each in well.executions.list() if each.parent_id}
    assert sorted(ended.values()) == [Status.COMPLETED, Status.FAILED]


@workflow(name="again.breaking")
async def breaking() -> str:
    return await breaks("last")


@workflow(name="again.undoing-parent")
async def undoing_parent() -> str:
    stepwell.compensate(undo, await note("first"))
    return await breaking()


def test_retry_of_failed_compensations_leaves_the_failed_child_alone(well: Stepwell) -> None:
    run = well.start(undoing_parent, execution_id="p")
    with pytest.raises(ExecutionFailed, match="not undone"):
        run.result(WAIT)
    before = well.load("p:2").revision
    mended.update(("undo first", "last"))
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert calls == {"first": 1, "undo first": 2, "last": 1}
    assert well.load("p:2").revision == before


def _status(well: Stepwell, execution_id: str) -> Status | None:
    try:
        return well.run(execution_id).status()
    except NotFound:
        return None


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)
