"""Typed calls: inputs by `with_input`, steps of the other colour, `map` with errors in place, signals and state of a class."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import (
    Conflict,
    ExecutionFailed,
    InvalidInput,
    QueueRequest,
    Scope,
    Status,
    StepFailed,
    Stepwell,
    StepwellError,
    step,
    workflow,
)
from stepwell.testing import crash_everywhere

WAIT = 20
together = threading.Barrier(3, timeout=WAIT)
SHELF = Scope.custom("shelf")


@dataclass
class Approval:
    by: str
    level: int = 1


@workflow(name="typed.two")
async def two(item: str, cents: int = 3) -> str:
    return f"{item} for {cents}"


@workflow(name="typed.one")
def one(approval: Approval | None = None) -> str:
    return approval.by if approval is not None else "no one"


@step(name="typed.double")
def double(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is below zero")
    return 2 * number


@step(name="typed.triple")
async def triple(number: int) -> int:
    return 3 * number


@workflow(name="typed.awaiting")
async def awaiting(number: int) -> list[int]:
    return [await double.aio(number), *await stepwell.map(double.aio, [number]), *await stepwell.map(triple, [number])]


@workflow(name="typed.blocking")
def blocking(number: int) -> list[int]:
    return [triple.sync(number), *stepwell.map(triple.sync, [number]), *stepwell.map(double, [number])]


@workflow(name="typed.doubled")
def doubled(number: int) -> int:
    return double(number)


@workflow(name="typed.tripled")
async def tripled(number: int) -> int:
    return await triple(number)


@workflow(name="typed.awaiting_parts")
async def awaiting_parts(number: int) -> list[int]:
    told = double.with_key("once").with_summary("twice the number")
    return [await told.aio(number), await doubled.aio(number), *await stepwell.map(doubled.aio, [number])]


@workflow(name="typed.blocking_parts")
def blocking_parts(number: int) -> list[int]:
    told = triple.with_key("once").with_summary("thrice the number")
    return [told.sync(number), tripled.sync(number), *stepwell.map(tripled.sync, [number])]


@workflow(name="typed.wrong_in_plain")
def wrong_in_plain() -> Any:
    return asyncio.run(double.aio(1))


@workflow(name="typed.wrong_in_async")
async def wrong_in_async() -> Any:
    return triple.sync(1)


@workflow(name="typed.forgetful")
async def forgetful(number: int) -> None:
    doubled.aio(number)


@workflow(name="typed.guessing")
async def guessing(option: str) -> int:
    return await triple(**{"number": 1, option: "a lamp"})  # type: ignore[arg-type]


@workflow(name="typed.plain_map")
async def plain_map() -> list[int]:
    return await stepwell.map(lambda number: 2 * number, [1])


@workflow(name="typed.settled")
async def settled(numbers: list[int]) -> list[Any]:
    return [_shown(each) for each in await stepwell.map(double, numbers, return_exceptions=True)]


@workflow(name="typed.settled_plain")
def settled_plain(numbers: list[int]) -> list[Any]:
    return [_shown(each) for each in stepwell.map(double, numbers, return_exceptions=True)]


@workflow(name="typed.settled_exit")
async def settled_exit(numbers: list[int]) -> list[Any]:
    return [_shown(each) for each in await stepwell.map(exiting_at_two, numbers, return_exceptions=True)]


@workflow(name="typed.settled_exit_plain")
def settled_exit_plain(numbers: list[int]) -> list[Any]:
    def plainly(number: int) -> int:
        return sys.exit("enough") if number == 2 else number

    return [_shown(each) for each in stepwell.map(plainly, numbers, return_exceptions=True)]


async def exiting_at_two(number: int) -> int:
    return sys.exit("enough") if number == 2 else number


@pytest.mark.parametrize("way", [settled_exit, settled_exit_plain])
def test_map_returns_what_a_call_that_exits_raised_in_its_place(well: Any, way: Any) -> None:
    first, exited, third = well.start(way, [1, 2, 3]).result(WAIT)
    assert (first, third) == (1, 3)
    assert "SystemExit(enough)" in exited


def _shown(output: int | Exception) -> Any:
    return output if isinstance(output, int) else f"{type(output).__name__}: {output}"


@step(name="typed.meet")
def meet(number: int) -> int:
    """Ends only when two others are under way."""
    together.wait()
    return number


def in_two_steps(number: int) -> int:
    return double(meet(number))


@workflow(name="typed.wrappers")
def wrappers(numbers: list[int]) -> list[int]:
    return stepwell.map(in_two_steps, numbers, concurrency=3)


def doubled_twice(number: int) -> int:
    return double(double(number))


@workflow(name="typed.counted_wrappers")
def counted_wrappers(numbers: list[int]) -> list[Any]:
    return [_shown(each) for each in stepwell.map(doubled_twice, numbers, concurrency=2, return_exceptions=True)]


@workflow(name="typed.approved")
async def approved() -> str:
    return (await stepwell.wait_signal("approve", type=Approval)).by


@workflow(name="typed.approved_plain")
def approved_plain() -> str:
    return stepwell.wait_signal.sync("approve", type=Approval).by


@workflow(name="typed.late_plain")
def late_plain() -> str:
    try:
        return stepwell.wait_signal.sync("approve", type=Approval, timeout=0.01).by
    except TimeoutError:
        return "no answer came"


@workflow(name="typed.signal_in_async")
async def signal_in_async() -> Approval:
    return stepwell.wait_signal.sync("approve", type=Approval)


@step(name="typed.read")
async def read() -> str:
    state = stepwell.current().state(SHELF)
    found: Approval = await state.get("lamp", type=Approval)
    return f"{found.by} {await state.get('desk', 'nothing', type=Approval)}"


@workflow(name="typed.reading")
async def reading() -> str:
    return await read()


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    """A well that works by the machine's clock, since its worker sleeps by it."""
    return open_well(url)


def test_call_with_input_starts_the_same_run_as_the_mapping(well: Stepwell) -> None:
    call = two.with_input("lamp", cents=4200)
    assert well.start(call, execution_id="order-7").result(WAIT) == "lamp for 4200"
    again = well.start(two, {"item": "lamp", "cents": 4200}, execution_id="order-7")
    assert again.result(WAIT) == "lamp for 4200"
    with pytest.raises(Conflict):
        well.start(two.with_input("lamp"), execution_id="order-7")


def test_call_with_input_is_enqueued_alone_among_many_and_by_a_schedule(well: Stepwell) -> None:
    item = well.enqueue(two.with_input("lamp"), key="k")
    assert item.result(WAIT) == "lamp for 3"
    [many] = well.enqueue_many([QueueRequest(workflow=one.with_input(Approval("ada")))])
    assert not isinstance(many, StepwellError)
    assert many.result(WAIT) == "ada"
    well.schedules.put("nightly", two.with_input("desk", 1), cron="0 3 * * *")
    assert well.schedules.run_now("nightly").result(WAIT) == "desk for 1"


def test_call_without_its_only_argument_takes_the_default(well: Stepwell) -> None:
    assert well.start(one.with_input()).result(WAIT) == "no one"


@pytest.mark.parametrize("call", [two.with_input, lambda: two.with_input("a", 1, 2), lambda: two.with_input("a", price=1)])
def test_arguments_that_a_workflow_does_not_take_are_refused(call: Any) -> None:
    with pytest.raises(InvalidInput, match=r"the input of workflow 'typed\.two': "):
        call()


def test_arguments_of_another_type_are_refused_when_the_call_is_started(well: Stepwell) -> None:
    with pytest.raises(InvalidInput, match="does not fit its parameter 'cents'"):
        well.start(two.with_input("lamp", cents="much"))  # type: ignore[arg-type]
    assert well.executions.list() == []


def test_second_input_beside_a_call_is_refused(well: Stepwell) -> None:
    with pytest.raises(InvalidInput, match="has its input already"):
        well.start(two.with_input("lamp"), {"item": "desk"})  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="has its input already"):
        well.enqueue(two.with_input("lamp"), {"item": "desk"})  # type: ignore[call-overload]


def test_steps_of_the_other_colour_are_called_by_aio_and_sync(well: Stepwell) -> None:
    assert well.start(awaiting, 5).result(WAIT) == [10, 10, 15]
    assert well.start(blocking, 5).result(WAIT) == [15, 15, 10]


def test_children_and_calls_with_a_key_of_the_other_colour_are_called_by_aio_and_sync(well: Stepwell) -> None:
    run = well.start(awaiting_parts, 5, execution_id="a")
    assert run.result(WAIT) == [10, 10, 10]
    assert run.steps()[0].summary == "twice the number"
    run = well.start(blocking_parts, 5, execution_id="b")
    assert run.result(WAIT) == [15, 15, 15]
    assert run.steps()[0].summary == "thrice the number"
    children = {each.workflow_id for each in well.executions.list() if each.execution_id not in "ab"}
    assert children == {"typed.doubled", "typed.tripled"}


def test_forgotten_await_of_a_child_of_the_other_colour_is_told_with_its_place(well: Stepwell) -> None:
    with pytest.raises(ExecutionFailed, match=r"test_typed_calls\.py:\d+; write await before it"):
        well.start(forgetful, 5).result(WAIT)


def test_outside_workflows_aio_and_sync_run_the_function() -> None:
    assert asyncio.run(double.aio(2)) == asyncio.run(doubled.aio(2)) == asyncio.run(double.with_key("a").aio(2)) == 4
    assert triple.sync(2) == tripled.sync(2) == triple.with_summary("a").sync(2) == 6

    async def inside_a_loop() -> None:
        with pytest.raises(InvalidInput, match=r"so await typed\.triple"):
            triple.sync(2)

    asyncio.run(inside_a_loop())


@pytest.mark.parametrize(("wrong", "instead"), [(wrong_in_plain, "typed.double(...)"), (wrong_in_async, "await typed.triple(...)")])
def test_aio_and_sync_in_a_workflow_of_the_wrong_colour_say_what_to_write(well: Stepwell, wrong: Any, instead: str) -> None:
    with pytest.raises(ExecutionFailed) as failed:
        well.start(wrong).result(WAIT)
    assert f"write {instead} there" in str(failed.value)


@pytest.mark.parametrize(("option", "instead"), [("summary", "with_summary"), ("key", "with_key")])
def test_option_of_a_call_that_is_given_as_an_argument_is_answered_with_its_call(well: Stepwell, option: str, instead: str) -> None:
    with pytest.raises(ExecutionFailed, match=rf"has no parameter '{option}'; write triple\.{instead}\(\.\.\.\)"):
        well.start(guessing, option).result(WAIT)


def test_map_of_a_plain_function_in_an_async_workflow_says_what_it_takes(well: Stepwell) -> None:
    with pytest.raises(ExecutionFailed, match="takes a step, a workflow or an async def function; <lambda> gave int"):
        well.start(plain_map).result(WAIT)


@pytest.mark.parametrize("map_of", [settled, settled_plain])
def test_map_returns_errors_in_their_places_when_asked_to(well: Stepwell, map_of: Any) -> None:
    first, second, third = well.start(map_of, [1, -1, 3]).result(WAIT)
    assert (first, third) == (2, 6)
    assert second.startswith(StepFailed.__name__)
    assert "-1 is below zero" in second


def test_functions_that_call_steps_run_side_by_side_in_plain_workflows(well: Stepwell) -> None:
    run = well.start(wrappers, [1, 2, 3])
    assert run.result(WAIT) == [2, 4, 6]
    assert {each.name for each in run.steps()} == {f"{n}/typed.{name}" for n in (1, 2, 3) for name in ("meet", "double")}


def test_functions_in_a_plain_map_end_the_same_wherever_the_run_crashes() -> None:
    crash_everywhere(counted_wrappers, [1, -1, 2])


@pytest.mark.parametrize("waiting", [approved, approved_plain])
def test_signal_comes_as_an_instance_of_a_class(well: Stepwell, waiting: Any) -> None:
    run = well.start(waiting)
    run.signal("approve", {"by": "ada"})
    assert run.result(WAIT) == "ada"


def test_blocking_wait_for_a_signal_ends_with_its_timeout(well: Stepwell) -> None:
    assert well.start(late_plain).result(WAIT) == "no answer came"


def test_blocking_wait_for_a_signal_belongs_into_no_async_workflow_and_not_outside(well: Stepwell) -> None:
    with pytest.raises(ExecutionFailed, match=r"write await stepwell\.wait_signal\(\.\.\.\) there"):
        well.start(signal_in_async).result(WAIT)
    with pytest.raises(InvalidInput, match=r"stepwell\.wait_signal\.sync\(\) is for the code of a workflow"):
        stepwell.wait_signal.sync("approve")


@pytest.mark.parametrize("waiting", [approved, approved_plain])
def test_signal_that_does_not_fit_its_class_fails_the_run_and_names_the_signal(well: Stepwell, waiting: Any) -> None:
    run = well.start(waiting)
    run.signal("approve", {"level": 2})
    with pytest.raises(ExecutionFailed, match="the value of signal 'approve'"):
        run.result(WAIT)
    assert run.status() is Status.FAILED


def test_step_reads_state_as_an_instance_of_a_class(well: Stepwell) -> None:
    well.state.custom("shelf").set("lamp", {"by": "ada"})
    assert well.start(reading).result(WAIT) == "ada nothing"
