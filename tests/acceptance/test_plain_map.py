"""``map`` in plain workflows: side by side within bounds, in order, recorded, and ended well whatever happens to one of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import ExecutionCancelled, ExecutionFailed, Retry, Status, StepFailed, Stepwell, step, workflow
from stepwell.testing import crash_everywhere
from stepwell.testing.store_access import worker_of

WAIT = 20
calls: Counter[Any] = Counter()
together = threading.Barrier(3, timeout=WAIT)
gate = threading.Event()
lock = threading.Lock()
under_way: list[int] = []
most: list[int] = []


_cleared = cleared(calls, most, under_way, gate)


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    """A well that works by the machine's clock, since its worker sleeps by it."""
    return open_well(url)


@step(name="m.meet")
def meet(number: int) -> int:
    """Ends only when two others are under way."""
    together.wait()
    return 10 * number


@step(name="m.counted")
async def counted(number: int) -> int:
    with lock:
        under_way.append(number)
        most.append(len(under_way))
    await asyncio.sleep(0)  # lets others begin, if they may
    under_way.remove(number)
    return 10 * number


@step(name="m.held")
def held(number: int) -> int:
    calls[number] += 1
    if number == 1:
        raise ValueError("one is no good")
    gate.wait(WAIT)
    return number


@step(name="m.once", retry=Retry(attempts=2, first_seconds=60))
async def once(number: int) -> int:
    calls[number] += 1
    if number == 2 and calls[number] == 1:
        raise ConnectionError("not yet")
    return number


@workflow
def meeting(numbers: list[int]) -> list[int]:
    return stepwell.map(meet, numbers, concurrency=3)


@workflow
def counting(numbers: list[int]) -> list[int]:
    return stepwell.map(counted, numbers, concurrency=2)


@workflow
def holding(numbers: list[int]) -> Any:
    try:
        return stepwell.map(held, numbers, concurrency=2)
    except StepFailed as error:
        return f"{error.step} {counted(5)}"


@workflow(name="m.recovering")
def recovering(numbers: list[int]) -> str:
    with suppress(StepFailed):
        stepwell.map(held, numbers, concurrency=2)
    stepwell.wait_signal("go")
    return "done"


@step(name="m.never", retry=Retry(attempts=2, first_seconds=3600))
def never(number: int) -> None:
    raise ConnectionError("away")


@workflow(name="m.patient")
def patient(is_total: bool) -> None:
    stepwell.map(never, [1, 2, 3], concurrency=3, return_exceptions=is_total)  # pyright: ignore[reportCallIssue, reportArgumentType]


@workflow
def trying(numbers: list[int]) -> list[int]:
    return stepwell.map(once, numbers, concurrency=2)


@workflow
def child(number: int) -> Any:
    return stepwell.wait_signal("go")


@workflow
def parent(numbers: list[int]) -> list[Any]:
    return stepwell.map(child, numbers, concurrency=2)


@workflow
def plain_code(numbers: list[int]) -> list[int]:
    return stepwell.map(lambda number: counted(number) + 1, numbers)


def test_steps_of_a_plain_workflow_run_side_by_side_and_give_their_outputs_in_order(well: Any) -> None:
    assert well.start(meeting, [1, 2, 3, 4, 5, 6]).result(WAIT) == [10, 20, 30, 40, 50, 60]


def test_no_more_run_at_a_time_than_asked_for(well: Any) -> None:
    run = well.start(counting, list(range(20)))
    assert run.result(WAIT) == [10 * number for number in range(20)]
    assert max(most) <= 2
    assert list(run.state().get_all_step_outputs())[:2] == ["m.counted", "m.counted#2"]


def test_nothing_to_map_is_an_empty_list(well: Any) -> None:
    assert well.start(counting, []).result(WAIT) == []


def test_code_of_ones_own_is_mapped_one_by_one(well: Any) -> None:
    assert well.start(plain_code, [1, 2]).result(WAIT) == [11, 21]


def test_after_a_failure_no_more_is_begun_and_what_is_under_way_is_recorded(well: Any) -> None:
    run = well.start(holding, [0, 1, 2, 3])
    while not any(each.name == "m.held#2" and each.status == "FAILED" for each in run.steps()):
        assert not gate.wait(0.01)
    gate.set()
    assert run.result(WAIT) == "m.held 50"
    assert calls == {0: 1, 1: 1}
    assert [each.status for each in run.state().get_all_step_outputs().values()].count("COMPLETED") == 2


def test_after_a_failure_a_run_that_resumes_begins_no_more_either(well: Any) -> None:
    """The failure is answered from the record then, and at once."""
    run = well.start(recovering, [0, 1, 2, 3])
    until(lambda: any(each.status == "FAILED" for each in run.steps()))
    gate.set()
    until(lambda: run.status() == Status.WAITING)
    run.signal("go")
    assert run.result(WAIT) == "done"
    assert calls == {0: 1, 1: 1}


@pytest.mark.parametrize("is_total", [False, True])
def test_cancel_of_a_resting_run_ends_every_call_of_a_map(well: Any, is_total: bool) -> None:
    run = well.start(patient, is_total)
    until(lambda: run.status() == Status.WAITING)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)


def test_call_that_waits_for_long_lets_the_others_end_and_the_run_rest(file_url: str) -> None:
    clock = stepwell.FakeClock()
    with Stepwell(file_url, clock=clock) as well:
        run = well.start(trying, [1, 2, 3, 4], execution_id="t")
        while run.status() != Status.WAITING:
            gate.wait(0.01)
        assert calls == {1: 1, 2: 1, 3: 1, 4: 1}, "the lane beside the one that waits made the rest"
        clock.advance(61)
        assert run.result(WAIT) == [1, 2, 3, 4]
    assert calls == {1: 1, 2: 2, 3: 1, 4: 1}


@workflow(name="m.replaying")
def replaying(numbers: list[int]) -> str:
    def code(number: int) -> None:
        counted(number)
        if number == 1:
            if is_second_session.is_set():
                gate.wait(1)  # the code is slow to come to its failure; ``gate`` opens if another item begins meanwhile
            raise ValueError("one is no good")
        if number == 2:
            stepwell.wait_signal("go")
        else:
            gate.set()

    with suppress(ValueError):
        stepwell.map(code, numbers, concurrency=2)
    return "done"


is_second_session = threading.Event()


def test_failure_that_code_comes_to_again_begins_no_more_however_slow_the_code_is(file_url: str) -> None:
    is_second_session.clear()
    with Stepwell(file_url) as well:
        run = well.start(replaying, [1, 2, 3, 4], execution_id="r")
        until(lambda: run.status() == Status.WAITING)
    is_second_session.set()
    with Stepwell(file_url) as well:
        well.run("r").signal("go")
        assert well.run("r").result(WAIT) == "done"
        assert sorted(well.load("r").steps) == ["1/m.counted", "2/m.counted", "2/signal:go"]
    assert not gate.is_set()


def test_code_of_ones_own_goes_on_with_new_items_while_others_wait(file_url: str) -> None:
    with Stepwell(file_url) as well:
        run = well.start(waiting_in_code, [1, 2], execution_id="w")
        until(lambda: run.status() == Status.WAITING)
    with Stepwell(file_url) as well:
        well.run("w").signal("go 2")
        until(lambda: "3/m.counted" in well.load("w").steps)
        for number in (1, 3, 4):
            well.run("w").signal(f"go {number}")
        assert well.run("w").result(WAIT) == [1, 2, 3, 4]


@workflow(name="m.waiting_in_code")
def waiting_in_code(_numbers: list[int]) -> list[int]:
    def code(number: int) -> int:
        counted(number)
        stepwell.wait_signal(f"go {number}")
        return number

    return stepwell.map(code, [1, 2, 3, 4], concurrency=2)


def test_children_of_a_plain_workflow_run_so_many_at_a_time(well: Any) -> None:
    run = well.start(parent, [1, 2, 3], execution_id="p")
    while run.status() != Status.WAITING or len(well.executions.list()) < 3:
        gate.wait(0.01)
    assert sorted(each.execution_id for each in well.executions.list()) == ["p", "p:1", "p:2"]
    for number in (1, 2, 3):
        while f"p:{number}" not in {each.execution_id for each in well.executions.list()}:
            gate.wait(0.01)
        well.run(f"p:{number}").signal("go", number)
    assert run.result(WAIT) == [1, 2, 3]


def test_cancel_reaches_the_calls_that_wait(well: Any) -> None:
    run = well.start(parent, [1, 2, 3], execution_id="p")
    while run.status() != Status.WAITING:
        gate.wait(0.01)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)


def test_failure_of_the_first_in_order_is_told(well: Any) -> None:
    @step(name="m.bad")
    def bad(number: int) -> None:
        together.wait()
        raise ValueError(f"bad {number}")

    @workflow(name="m.failing")
    def failing() -> None:
        stepwell.map(bad, [1, 2, 3], concurrency=3)

    with pytest.raises(ExecutionFailed, match="bad 1"):
        well.start(failing).result(WAIT)


@step(name="m.slow")
def slow(number: int) -> int:
    calls[number] += 1
    assert gate.wait(WAIT)
    return number


@workflow
def slowly(numbers: list[int]) -> list[int]:
    return stepwell.map(slow, numbers, concurrency=2)


def test_worker_that_is_to_stop_begins_no_more_of_them(file_url: str) -> None:
    with Stepwell(file_url) as well:
        well.start(slowly, [1, 2, 3, 4], execution_id="s")
        while len(calls) < 2:
            assert not gate.wait(0.01)
        session = worker_of(well).sessions["s"]
        well.drain()
        while not session._is_handing_back:
            assert not gate.wait(0.01)
        gate.set()
    assert calls == {1: 1, 2: 1}
    with Stepwell(file_url) as well:
        assert well.run("s").result(WAIT) == [1, 2, 3, 4]
    assert calls == {1: 1, 2: 1, 3: 1, 4: 1}


def test_killed_at_any_commit_it_comes_to_the_same() -> None:
    """T30-T33, for steps that are made side by side by a plain workflow."""
    crash_everywhere(counting, [1, 2, 3])
