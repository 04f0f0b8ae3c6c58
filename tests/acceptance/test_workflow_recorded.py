"""Recorded time, randomness and ids; and calls that the code of a workflow makes and does not await."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from tests.support.command_line import Shell, shell

import stepwell
from stepwell import ExecutionFailed, InvalidInput, Status, Stepwell, step, workflow
from stepwell.testing import crash_everywhere

__all__ = ["shell"]

WAIT = 20
seen: list[list[Any]] = []


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works by the machine's clock."""
    return working_well


@step(name="rec.charge")
async def charge(cents: int) -> int:
    return cents


@step(name="rec.plain_charge")
def plain_charge(cents: int) -> int:
    return cents


@workflow(name="rec.makes")
async def makes() -> list[Any]:
    made = [stepwell.now().isoformat(), stepwell.random(), str(stepwell.uuid())]
    await charge(1)
    more = [stepwell.now().isoformat(), stepwell.random(), str(stepwell.uuid())]
    seen.append([*made, *more])
    await stepwell.wait_signal("go", timeout=0.3 if len(seen) == 0 else 60)
    return [*made, *more]


@workflow(name="rec.makes_plainly")
def makes_plainly() -> list[Any]:
    made = [stepwell.now().isoformat(), stepwell.random(), str(stepwell.uuid())]
    plain_charge(1)
    seen.append(made)
    stepwell.wait_signal("go")
    return made


@pytest.mark.parametrize("way", [makes, makes_plainly])
def test_recorded_values_are_the_same_when_the_code_runs_again(well: Any, way: Any) -> None:
    seen.clear()
    run = well.start(way)
    while run.status() != Status.WAITING:
        pass
    run.signal("go")
    result = run.result(WAIT)
    assert len(seen) == 2, "the code ran twice"
    assert seen[0] == seen[1] == result
    assert datetime.fromisoformat(result[0]).tzinfo is not None
    assert abs((datetime.now(UTC) - datetime.fromisoformat(result[0])).total_seconds()) < WAIT
    assert 0 <= result[1] < 1
    assert UUID(result[2]).version == 4
    assert len(set(result)) == len(result), "each call makes its own"


@workflow(name="rec.counts")
async def counts() -> bool:
    first = stepwell.uuid()
    await charge(1)
    return first == UUID(await remember(str(first)))


@step(name="rec.remember")
async def remember(text: str) -> str:
    return text


def test_recorded_value_is_one_wherever_the_worker_dies() -> None:
    assert crash_everywhere(counts).result is True


@pytest.mark.parametrize("make", [stepwell.now, stepwell.random, stepwell.uuid])
def test_recorded_values_are_refused_outside_of_workflow_code(make: Any) -> None:
    with pytest.raises(InvalidInput, match="is for the code of a workflow"):
        make()


@workflow(name="rec.forgets_step")
async def forgets_step() -> str:
    charge(1)  # pyright: ignore[reportUnusedCoroutine]
    return "done"


@workflow(name="rec.forgets_child")
async def forgets_child() -> str:
    await charge(1)
    counts()  # pyright: ignore[reportUnusedCoroutine]
    return "done"


@workflow(name="rec.forgets_sleep")
async def forgets_sleep() -> str:
    stepwell.sleep(1)
    return "done"


@workflow(name="rec.forgets_map")
async def forgets_map() -> str:
    stepwell.map(charge, [1, 2])
    return "done"


@workflow(name="rec.forgets_branch")
async def forgets_branch() -> str:
    async def pay() -> None:
        charge(1)  # pyright: ignore[reportUnusedCoroutine]

    await asyncio.gather(pay(), charge(2))
    return "done"


@workflow(name="rec.forgets_task")
async def forgets_task() -> str:
    task = asyncio.create_task(charge(1))
    return f"begun: {not task.done()}"


@workflow(name="rec.forgets_gather")
async def forgets_gather() -> str:
    asyncio.gather(charge(1), charge(2))  # pyright: ignore[reportUnusedCallResult]
    return "done"


@workflow(name="rec.forgets_aio")
async def forgets_aio() -> str:
    plain_charge.aio(1)  # pyright: ignore[reportUnusedCoroutine]
    return "done"


@workflow(name="rec.returns_call")
async def returns_call() -> Any:
    return charge(1)


@workflow(name="rec.returns_calls")
async def returns_calls() -> list[Any]:
    return [charge.with_key(f"c-{cents}")(cents) for cents in (1, 2)]


def line_of(way: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(way.function)
    return first + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("way", "text", "message"),
    [
        (forgets_step, "charge(1)", "step 'rec.charge' was called and not awaited"),
        (forgets_child, "counts()", "workflow 'rec.counts' was called and not awaited"),
        (forgets_sleep, "stepwell.sleep", r"stepwell.sleep\(\) was called and not awaited"),
        (forgets_map, "stepwell.map", r"stepwell.map\(\) was called and not awaited"),
        (forgets_branch, "charge(1)", "step 'rec.charge' was called and not awaited"),
        (forgets_task, "charge(1)", "step 'rec.charge' was called and not awaited"),
        (forgets_gather, "charge(1)", "step 'rec.charge' was called and not awaited"),
        (forgets_aio, "plain_charge.aio", "step 'rec.plain_charge' was called and not awaited"),
        (returns_call, "charge(1)", "step 'rec.charge' was called and not awaited"),
        (returns_calls, "charge.with_key", "step 'rec.charge' was called and not awaited"),
    ],
)
def test_call_that_is_not_awaited_fails_the_run_with_its_line(well: Any, way: Any, text: str, message: str) -> None:
    run = well.start(way)
    with pytest.raises(ExecutionFailed, match=rf"{message}, at test_workflow_recorded.py:{line_of(way, text)}"):
        run.result(WAIT)
    assert run.status() == Status.FAILED


@workflow(name="rec.leaves_call")
async def leaves_call() -> int:
    later = charge(1)
    await stepwell.sleep(0.5)
    return await later


def test_call_that_is_awaited_after_a_rest_is_made(well: Any) -> None:
    assert well.start(leaves_call).result(WAIT) == 1


@workflow(name="rec.cancels_call")
async def cancels_call() -> str:
    task = asyncio.create_task(charge(1))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return "done"


@workflow(name="rec.cancels_last")
async def cancels_last() -> str:
    asyncio.create_task(charge(1)).cancel()
    return "done"


@workflow(name="rec.cancels_group")
async def cancels_group() -> str:
    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(charge(1))
            raise ValueError("before a task of the group has begun")
    return "done"


@pytest.mark.parametrize("way", [cancels_call, cancels_last, cancels_group])
def test_call_that_is_cancelled_before_it_begins_is_no_forgotten_one(well: Any, way: Any) -> None:
    assert well.start(way).result(WAIT) == "done"


@workflow(name="rec.raises")
async def raises() -> None:
    charge(1)  # pyright: ignore[reportUnusedCoroutine]
    raise ValueError("more important")


def test_error_of_the_code_is_told_before_a_forgotten_call(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="more important"):
        well.start(raises).result(WAIT)


SHOP = """\
import asyncio
from stepwell import step, workflow

@step
async def charge(cents): ...

@workflow
async def shop(order):
    await asyncio.sleep(5)
    charge(3)
    charge.with_key("payment-7")(3)
    pay(order)
    pack.aio(order)

@workflow
async def pay(order): ...

@step
def pack(order): ...
"""


def test_check_names_file_line_and_replacement(shell: Shell) -> None:
    shell.write("till.py", SHOP)
    done = shell("check", "till.py")
    assert done.code == 5
    assert [line.partition(": ")[0] for line in done.out.splitlines()] == [
        "till.py:9:11",
        "till.py:10:5",
        "till.py:11:5",
        "till.py:12:5",
        "till.py:13:5",
    ]
    assert "write await stepwell.sleep(...)" in done.out
    assert "write await charge(...)" in done.out
    assert "write await charge.with_key(...)(...)" in done.out
    assert "write await pack.aio(...)" in done.out
    assert "workflow 'pay' is called and not awaited; write await pay(...)" in done.out
    assert shell("check", "till.py:shop").code == 5
