"""Values that are as large as they may be, and larger ones: the limits of the well count wherever a value passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support import process_steps

import stepwell
from stepwell import ExecutionFailed, LimitExceeded, Limits, Status, step, workflow
from stepwell.flow import call, define, each, loop, map_data, signal, subworkflow
from stepwell.model.commit import Claim
from stepwell.testing.store_access import store_under

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
    """The envelope of a value, such as the sender's name, does not count to its size."""
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


@stepwell.step(name="sizes.some")
async def some(_: int = 0) -> str:
    return "x" * 50


@stepwell.step(name="sizes.undo")
async def undo(_: int = 0) -> None:
    pass


@workflow
async def filling() -> None:
    for number in range(100):
        await some(number)


@workflow
def filling_plainly() -> None:
    for number in range(100):
        some.sync(number)


@workflow
async def filling_at_once() -> None:
    await stepwell.map(some, range(100))


@workflow
async def filling_between_rests() -> None:
    for number in range(100):
        await some(number)
        await stepwell.sleep(0.001)


@workflow
async def filling_by_children() -> None:
    for _ in range(100):
        await giving(10)


@workflow
async def filling_with_undo() -> None:
    for number in range(100):
        await some(number)
        stepwell.compensate(undo, number)


@workflow
async def filling_by_undo() -> None:
    for number in range(30):
        stepwell.compensate(undo, number)
    raise ValueError("no")


FILLING: list[Any] = [
    filling,
    filling_plainly,
    filling_at_once,
    filling_between_rests,
    filling_by_children,
    filling_with_undo,
    define("sizes-loop", loop(call("sizes.some", compensate=call("sizes.undo")), count=100)),
    define("sizes-each", each(call("sizes.some"), count=100)),
]


@pytest.mark.parametrize("way", FILLING, ids=lambda way: way.name)
def test_run_whose_steps_fill_its_state_fails_instead_of_being_run_for_ever(open_well: OpenWell, way: Any) -> None:
    """Its failure is recorded though its state is full: else each lease would run its last step again."""
    well: Any = open_well("memory://", limits=Limits(execution_bytes=3_000))
    run = well.start(way)
    with pytest.raises(ExecutionFailed, match="execution_bytes=3,000; make it smaller or raise") as failure:
        run.result(WAIT)
    assert run.status() == Status.FAILED
    assert run.verify().ok
    assert ("not undone" in str(failure.value)) == (way is filling_with_undo)


def test_run_whose_compensations_fill_its_state_names_those_that_were_not_recorded(open_well: OpenWell) -> None:
    well: Any = open_well("memory://", limits=Limits(execution_bytes=3_000))
    run = well.start(filling_by_undo)
    with pytest.raises(ExecutionFailed, match=r"ValueError: no; not undone, since their compensation failed: 'undo:sizes\.undo'"):
        run.result(WAIT)
    assert 5 < len([each for each in run.steps() if each.status == "COMPLETED"]) < 30


def test_run_that_is_suspected_when_its_state_is_full_fails(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/well.db"
    with stepwell.Stepwell(url, worker=False) as sender:
        run = sender.start(filling, execution_id="full")
        with sender.transaction("full") as tx:
            tx.set_variable("text", "x" * 3_000)
        store_under(sender).write([Claim("full", "a worker that dies", 0.001)] * 2)
    full = Limits(execution_bytes=3_000)
    with stepwell.Stepwell(url, limits=full) as well, pytest.raises(ExecutionFailed, match="execution_bytes=3,000"):
        well.run(run.execution_id).result(WAIT)
