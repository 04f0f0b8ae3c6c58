"""Values that are as large as they may be, and larger ones: the limits of the well count wherever a value passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support import process_steps

import stepwell
from stepwell import ExecutionFailed, LimitExceeded, Limits, Status, step, workflow
from stepwell.flow import call, define, map_data, signal, subworkflow

WAIT = 20
SMALL = Limits(value_bytes=1_000)
LARGE = Limits(value_bytes=1_000_000)


@step(name="v.give")
async def give(size: int) -> str:
    return "x" * size


@workflow
async def giving(size: int) -> str:
    return "x" * size


@workflow
async def stepping(size: int) -> int:
    return len(await give(size))


@workflow
async def in_a_process(size: int) -> int:
    return len(await process_steps.repeat("x", size))


@workflow
async def asking_a_child(size: int) -> int:
    return len(await giving(size))


@workflow
async def hearing() -> int:
    return len(await stepwell.wait_signal("go"))


@workflow
async def resting(size: int) -> int:
    given = await give(size)
    await stepwell.wait_signal("go")
    return len(given)


@workflow
async def taking(text: str) -> int:
    return len(text)


def _asked_again(well: Any, size: int) -> int:
    well.start(giving, size, execution_id="again").result(WAIT)
    return len(well.run("again").result(WAIT))


def _heard(well: Any, way: Any, size: int) -> Any:
    run = well.start(way)
    run.signal("go", "x" * size)
    return run.result(WAIT)


def _queued(well: Any, size: int) -> int:
    return well.enqueue(taking, "x" * size).result(WAIT)


WAYS: dict[str, Callable[[Any, int], Any]] = {
    "output of a step": lambda well, size: well.start(stepping, size).result(WAIT),
    "result": lambda well, size: len(well.start(giving, size).result(WAIT)),
    "result asked for again": _asked_again,
    "result of a child": lambda well, size: well.start(asking_a_child, size).result(WAIT),
    "input": lambda well, size: well.start(taking, "x" * size).result(WAIT),
    "input by the queue": _queued,
    "signal": lambda well, size: _heard(well, hearing, size),
    "declared output": lambda well, size: len(well.start(define("v-give", call("v.give", size))).result(WAIT)),
    "declared input": lambda well, size: len(well.start(define("v-map", map_data("{{ trigger.input }}")), "x" * size).result(WAIT)),
    "declared child": lambda well, size: len(well.start(define("v-sub", subworkflow("giving", size))).result(WAIT)),
    "declared signal": lambda well, size: len(_heard(well, define("v-signal", signal("go")), size)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limits", [Limits(), LARGE], ids=["default", "raised"])
def test_value_as_large_as_it_may_be_passes_everywhere(open_well: OpenWell, url: str, limits: Limits, way: str) -> None:
    """What is put around a value on its way, such as who tells it, is not held against it."""
    size = limits.value_bytes - 2  # the quotes
    assert WAYS[way](open_well(url, limits=limits), size) == size


@pytest.mark.parametrize("way", WAYS)
def test_value_over_the_limit_of_the_well_is_refused_everywhere(open_well: OpenWell, way: str) -> None:
    well: Any = open_well("memory://", limits=SMALL)
    with pytest.raises((ExecutionFailed, LimitExceeded), match="over the limit value_bytes=1,000; make it smaller or raise"):
        WAYS[way](well, 999)
    assert well.start(stepping, 10).result(WAIT) == 10, "the worker serves the others"


def test_limits_of_the_well_count_in_a_process_of_a_step(open_well: OpenWell) -> None:
    well: Any = open_well("memory://", limits=LARGE)
    assert well.start(in_a_process, 900_000).result(60) == 900_000
    with pytest.raises(ExecutionFailed, match="value_bytes=1,000,000"):
        well.start(in_a_process, 1_000_000).result(60)


def test_large_output_is_answered_from_the_record_when_the_run_is_taken_up_again(file_url: str) -> None:
    with stepwell.Stepwell(file_url, limits=LARGE) as well:
        run = well.start(resting, 900_000, execution_id="r")
        while run.status() != Status.WAITING:
            pass
    with stepwell.Stepwell(file_url, limits=LARGE) as well:
        well.run("r").signal("go")
        assert well.run("r").result(WAIT) == 900_000


@workflow
async def remembering(size: int) -> None:
    stepwell.current().variables["text"] = "x" * size


@workflow
async def remembering_and_failing(size: int) -> None:
    stepwell.current().variables["text"] = "x" * size
    raise ValueError("no")


@pytest.mark.parametrize("way", [giving, remembering, remembering_and_failing, stepping], ids=lambda way: way.name)
def test_run_whose_state_would_be_too_large_fails_and_says_so_at_once(open_well: OpenWell, url: str, way: Any) -> None:
    """It is not taken for one that brings down its workers."""
    well: Any = open_well(url, limits=Limits(execution_bytes=3_000))
    run = well.start(way, 4_000)
    with pytest.raises(ExecutionFailed, match="ValueError: no" if way is remembering_and_failing else "execution_bytes=3,000"):
        run.result(WAIT)
    assert well.executions.list()[0].status == Status.FAILED
