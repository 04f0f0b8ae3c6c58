"""Branches of a workflow's code: what one does while others wait, fail, are cancelled, rest or begin again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import ExecutionCancelled, ExecutionFailed, Retry, Status, StepFailed, Stepwell, step, workflow
from stepwell.testing import SkippingClock, TestWell

WAIT = 30
begun: list[Any] = []
made: list[Any] = []
booked: set[str] = set()
faults: set[str] = set()


_cleared = cleared(begun, made, booked, faults)


@pytest.fixture
def well() -> Iterator[TestWell]:
    with TestWell(SkippingClock()) as opened:
        yield opened


@step
async def make(name: Any, seconds: float = 10) -> Any:
    begun.append(name)
    await asyncio.sleep(seconds / 2 if name in faults else seconds)
    if name in faults:
        raise LookupError(f"no {name}")
    made.append(name)
    return name


# A cancel is told to each branch once.


@workflow
async def cleans_up_in_branches() -> None:
    try:
        await stepwell.wait_signal("paid")
    except ExecutionCancelled:
        await stepwell.map(make, [1, 2, 3])
        async with asyncio.TaskGroup() as group:
            group.create_task(make(4))
        raise


def test_branches_that_clean_up_are_not_told_of_the_cancel_again(well: TestWell) -> None:
    run = well.start(cleans_up_in_branches)
    well.clock.advance("1m")
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert sorted(made) == [1, 2, 3, 4]


async def wait_for_a_note() -> None:
    await stepwell.wait_signal("note")


@workflow
async def works_beside_a_wait() -> None:
    beside = asyncio.ensure_future(wait_for_a_note())
    for number in range(20):
        await make(number)
    await beside


def test_branch_that_makes_a_step_learns_of_a_cancel_though_another_one_waits(well: TestWell) -> None:
    run = well.start(works_beside_a_wait)
    well.clock.advance(25)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert made == [0, 1, 2]


@workflow
async def refunding(seconds: float) -> None:
    await make(f"first after {seconds}", seconds)
    await make(f"second after {seconds}", seconds)


@workflow
async def cleans_up_by_children() -> None:
    try:
        await stepwell.wait_signal("paid")
    except ExecutionCancelled:
        await asyncio.gather(refunding(1), refunding(5), refunding(9))
        raise


def test_children_that_clean_up_are_not_cancelled_when_the_first_of_them_ends(well: TestWell) -> None:
    run = well.start(cleans_up_by_children, execution_id="r")
    well.clock.advance("1m")
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert [well.run(f"r:{call}").status() for call in (2, 3, 4)] == [Status.COMPLETED] * 3
    assert len(made) == 6


# Compensation that a branch has planned.


@step(retry=Retry(attempts=9, first_seconds=3600, factor=1, max_seconds=3600))
async def free(name: str) -> None:
    if "free" in faults:
        raise ConnectionError("down")
    booked.discard(name)


async def book(name: str, seconds: float) -> None:
    booked.add(await make(name, seconds))
    stepwell.compensate(free, name)


@workflow
async def books_side_by_side() -> None:
    await asyncio.gather(book("hotel", 30), book("flight", 5))


def test_what_a_branch_had_under_way_when_another_failed_is_undone_too(well: TestWell) -> None:
    faults.add("flight")
    with pytest.raises(ExecutionFailed):
        well.start(books_side_by_side).result(WAIT)
    assert (made, booked) == (["hotel"], set())


async def book_and_wait(name: str) -> None:
    await book(name, 1)
    await stepwell.wait_signal("never")


@workflow
async def books_beside() -> None:
    beside = asyncio.ensure_future(book_and_wait("hotel"))
    await make("flight")
    await beside


def test_compensation_of_a_branch_is_found_again_after_a_rest(well: TestWell) -> None:
    faults.update(("flight", "free"))
    run = well.start(books_beside)
    well.clock.advance("10m")
    assert (run.status(), booked) == (Status.WAITING, {"hotel"})
    faults.discard("free")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert booked == set()


@workflow(timeout="1m")
def fails_in_time() -> None:
    made.append("code")
    stepwell.compensate(free, "hotel")
    raise ValueError("no")


def test_compensation_that_waits_beyond_the_deadline_is_not_looked_at_until_then(well: TestWell) -> None:
    faults.add("free")
    run = well.start(fails_in_time)
    well.clock.advance("30m")
    assert run.status() == Status.WAITING
    assert len(made) <= 3
    assert len(run.receipts()) < 10


# Children of a parent that is retried.


@workflow
async def kid(name: str) -> str:
    return await make(name, 1 if name == "b" else 60)


@workflow
async def has_three() -> list[str]:
    return await stepwell.map(kid, ["a", "b", "c"])


def test_children_cancelled_with_their_parent_are_started_anew_by_its_retry(well: TestWell) -> None:
    faults.add("b")
    run = well.start(has_three)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    well.clock.advance("10m")
    faults.clear()
    run.retry()
    assert run.result(WAIT) == ["a", "b", "c"]


# What is before a branch is before what was done in it.


async def part() -> None:
    stepwell.current().variables["phase"] = "waiting"
    await stepwell.wait_signal("go")
    await stepwell.wait_signal("go on")


@workflow
async def sets_before_branches() -> bool:
    stepwell.current().variables["phase"] = "begun"
    await asyncio.gather(part())
    return True


def test_variable_that_was_set_before_branches_is_not_set_again_after_a_rest_in_them(well: TestWell) -> None:
    run = well.start(sets_before_branches)
    well.clock.advance("1m")
    run.signal("go")
    well.clock.advance("1m")
    assert (run.status(), run.state().get_variable("phase")) == (Status.WAITING, "waiting")


def test_run_that_rests_in_branches_has_passed_what_is_before_them(file_url: str) -> None:
    async def old(number: int) -> str:
        await stepwell.wait_signal(f"go {number}")
        return f"old {number}"

    async def new(number: int) -> str:
        await stepwell.wait_signal(f"go {number}")
        return f"new {number}"

    @workflow(name="branches.patched")
    async def before() -> list[str]:
        return await stepwell.map(old, [1, 2])

    with Stepwell(file_url) as well:
        run = well.start(before, execution_id="r")
        until(lambda: run.status() == Status.WAITING)

    @workflow(name="branches.patched")
    async def after() -> list[str]:  # pyright: ignore[reportUnusedFunction] - it takes the other's place
        return await stepwell.map(new if stepwell.patched("p") else old, [1, 2])

    with Stepwell(file_url) as well:
        well.run("r").signal("go 1")
        well.run("r").signal("go 2")
        assert well.run("r").result(WAIT) == ["old 1", "old 2"]


# A worker that stops lets steps end.


@pytest.mark.parametrize("way", ["map", "group"])
def test_steps_of_branches_that_are_under_way_end_before_their_worker_stops(file_url: str, way: str) -> None:
    entered: list[int] = []
    ended: list[int] = []
    go_on = asyncio.Event()

    @step(name="branches.slow")
    async def slow(number: int) -> None:
        entered.append(number)
        if number == 0:
            await go_on.wait()
        else:
            await go_on.wait()
            await asyncio.sleep(0.05)
        ended.append(number)

    async def twice(number: int) -> None:
        await slow(number)
        await slow(number + 3)

    @workflow(name="branches.many")
    async def many() -> None:
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        if way == "map":
            await stepwell.map(slow, range(6), concurrency=3)
            return
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(twice(number))

    well = Stepwell(file_url)
    well.start(many)
    until(lambda: len(entered) == 3)
    well.close()
    assert sorted(ended) == [0, 1, 2]


# What a group has cancelled stays cancelled.


@workflow
async def passes_over_a_failure() -> list[Any]:
    with suppress(StepFailed):
        await stepwell.map(make, ["bad", "b", "c", "d"], concurrency=2)
    return [await stepwell.wait_signal(f"go {number}") for number in range(3)]


def test_steps_that_a_failure_has_cancelled_are_not_begun_again_after_each_rest(well: TestWell) -> None:
    faults.add("bad")
    run = well.start(passes_over_a_failure)
    for number in range(3):
        well.clock.advance("10m")
        run.signal(f"go {number}", number)
    assert run.result(WAIT) == [0, 1, 2]
    assert max(begun.count(name) for name in ("b", "c")) == 1


async def hear() -> Any:
    return await stepwell.wait_signal("x")


async def fail_soon() -> None:
    await make("bad", 1)


@workflow
async def hears_after_a_failure(kind: str) -> Any:
    beside = {"signal": hear, "sleep": lambda: stepwell.sleep("1h"), "child": lambda: kid("a")}[kind]

    async def branch() -> Any:
        return await beside()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_soon())
            group.create_task(branch())
    except* StepFailed:
        pass
    return await stepwell.wait_signal("x")


@pytest.mark.parametrize("kind", ["signal", "sleep", "child"])
def test_wait_that_a_failure_has_cancelled_takes_nothing_any_more(well: TestWell, kind: str) -> None:
    faults.add("bad")
    run = well.start(hears_after_a_failure, kind)
    well.clock.advance("10m")
    assert run.status() == Status.WAITING
    run.signal("x", "hello")
    assert run.result(WAIT) == "hello"


@workflow
async def ends_with_a_cancelled_wait(kind: str) -> str:
    beside = {"signal": hear, "sleep": lambda: stepwell.sleep("1h"), "child": lambda: kid("a")}[kind]
    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_soon())
            group.create_task(beside())
    return "ended"


@pytest.mark.parametrize("kind", ["signal", "sleep", "child"])
def test_run_ends_right_after_a_failure_that_has_cancelled_a_wait(well: TestWell, kind: str) -> None:
    faults.add("bad")
    run = well.start(ends_with_a_cancelled_wait, kind)
    well.clock.advance("10m")
    assert run.result(WAIT) == "ended"
    assert well.verify(run.execution_id).ok


@workflow
async def tells_of_its_failure() -> list[Any]:
    try:
        return await stepwell.map(make, ["bad", "b"])
    except StepFailed:
        await make("told", 1)
        raise


def test_run_that_is_retried_makes_what_the_failure_had_cancelled(well: TestWell) -> None:
    faults.add("bad")
    run = well.start(tells_of_its_failure)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    faults.clear()
    run.retry()
    assert run.result(WAIT) == ["bad", "b"]


# Tasks that the code does not await.


async def rests(name: str) -> Any:
    await stepwell.sleep("1m")
    return await make(name)


async def rests_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(rests("c"))


@workflow
async def forgets_its_tasks() -> str:
    tasks = [asyncio.create_task(rests("a")), asyncio.create_task(rests("b")), asyncio.create_task(rests_in_a_group())]
    await stepwell.sleep("5s")
    return f"began {len(tasks)}"


def test_tasks_that_nobody_waits_for_are_unwound_without_a_word(well: TestWell, caplog: pytest.LogCaptureFixture) -> None:
    assert well.start(forgets_its_tasks).result(WAIT) == "began 3"
    well.close()
    gc.collect()
    assert caplog.records == []


@step(name="br.slow_to_lose")
async def slow_to_lose(name: str) -> str:
    await asyncio.sleep(60 if name == "loser" else 0)
    return name


@workflow(name="br.racing")
async def racing() -> str:
    tasks = [asyncio.create_task(slow_to_lose(name)) for name in ("loser", "winner")]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return done.pop().result()


def test_call_that_the_code_cancels_is_recorded_as_cancelled(well: Any) -> None:
    run = well.start(racing)
    assert run.result(20) == "winner"
    assert {record.status for record in run.steps()} == {"CANCELLED", "COMPLETED"}
    [loser] = [record for record in run.steps() if record.status == "CANCELLED"]
    assert (loser.output, loser.error) == (None, None)
