"""Variables of a workflow's code: set once, however often the code is run again to find out where it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import stepwell
from stepwell import Status, step, workflow
from stepwell.testing import SkippingClock, TestWell, crash_everywhere

WAIT = 60


@step
async def look() -> str:
    return "looked"


@workflow
async def awaited_visits() -> list[Any]:
    variables = stepwell.current().variables
    variables["visits"] = variables.get("visits", 0) + 1
    await look()
    return [await stepwell.wait_signal("go"), variables["visits"]]


@step
def plain_look() -> str:
    return "looked"


@workflow
def plain_visits() -> list[Any]:
    variables = stepwell.current().variables
    variables["visits"] = variables.get("visits", 0) + 1
    plain_look()
    return [stepwell.wait_signal("go"), variables["visits"]]


@pytest.fixture
def well() -> Iterator[TestWell]:
    with TestWell(SkippingClock()) as opened:
        yield opened


@pytest.fixture(params=[awaited_visits, plain_visits], ids=["async", "plain"])
def resting(request: pytest.FixtureRequest, well: TestWell) -> Any:
    """A run that has passed its step and rests: whoever takes it up runs its code from the start."""
    run = well.start(request.param)
    well.clock.advance("1m")
    assert (run.status(), run.state().get_variable("visits")) == (Status.WAITING, 1)
    return run


def test_variable_set_before_a_recorded_step_is_not_set_again_on_replay(resting: Any) -> None:
    resting.signal("go", "on")
    assert resting.result(WAIT) == ["on", 1]
    written = [each for receipt in resting.receipts() for each in receipt.mutations if each["type"] == "set_variable"]
    assert [(each["name"], each["value"]) for each in written] == [("visits", 1)]


def test_variable_that_somebody_else_has_set_meanwhile_is_left_as_it_is(well: TestWell, resting: Any) -> None:
    with well.transaction(resting.execution_id) as tx:
        tx.set_variable("visits", 40)
    resting.signal("go", "on")
    assert resting.result(WAIT) == ["on", 40]
    assert resting.state().get_variable("visits") == 40


@step(retry=stepwell.Retry(attempts=2, first_seconds="1h", max_seconds="1h"))
async def fail_once() -> None:
    if stepwell.current().attempt == 1:
        raise ValueError("the first time")


@workflow
async def tell() -> None:
    await stepwell.wait_signal("tell")


WAITS: dict[str, Any] = {
    "sleep": lambda: stepwell.sleep("1h"),
    "signal": lambda: stepwell.wait_signal("go", timeout="1h"),
    "retry": fail_once,
    "child": tell,
}


@workflow
async def waits_after_setting(kind: str) -> list[Any]:
    variables = stepwell.current().variables
    variables["visits"] = variables.get("visits", 0) + 1
    is_new = stepwell.patched(kind)
    with suppress(TimeoutError):
        await WAITS[kind]()
    return [variables["visits"], is_new]


@pytest.mark.parametrize("kind", WAITS)
def test_variable_that_was_set_right_before_a_wait_is_not_set_again_after_it(well: TestWell, kind: str) -> None:
    """Changes before a wait land in the commit of the wait."""
    run = well.start(waits_after_setting, kind)
    well.clock.advance("1m")
    assert (run.status(), run.state().get_variable("visits")) == (Status.WAITING, 1)
    if kind == "child":
        well.run(f"{run.execution_id}:1").signal("tell")
    well.clock.advance("2h")
    assert run.result(WAIT) == [1, True]


@workflow
async def visits_twice() -> list[Any]:
    variables = stepwell.current().variables
    for _ in range(2):
        variables["visits"] = variables.get("visits", 0) + 1
        await look()
    return [variables["visits"]]


def test_variable_counts_right_wherever_the_worker_dies() -> None:
    """T30: it lands with the step that comes after it, or not at all."""
    assert crash_everywhere(visits_twice).result == [2]


@workflow
async def names_badly(number: int) -> None:
    variables: Any = stepwell.current().variables
    variables[BAD_NAMES[number]] = 1
    await look()


BAD_NAMES: list[Any] = [5, None, b"x", (1, 2), "\ud800", "", "a\0b", "x" * 600]


@pytest.mark.parametrize("number", range(len(BAD_NAMES)))
def test_variable_with_a_name_that_no_store_takes_is_refused_where_it_is_set(well: TestWell, number: int) -> None:
    with pytest.raises(stepwell.ExecutionFailed, match="a variable's name"):
        well.start(names_badly, number).result(WAIT)
