"""The size of a `map` is recorded with its first commit: progress, the items under way, and one node in a picture."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import Progress, Run, Stepwell, step, workflow
from stepwell.testing import crash_everywhere

WAIT = 20
may_end = threading.Event()


@step(name="p.resize")
def resize(number: int) -> int:
    if number >= 2:
        may_end.wait(WAIT)
    return number


def twice(number: int) -> int:
    return resize(resize(number))


@workflow(name="p.plain")
def plain(count: int) -> int:
    resize(0)
    return len(stepwell.map(resize, range(count), concurrency=3, label=lambda number: f"photo {number}"))


@workflow(name="p.awaiting")
async def awaiting(count: int) -> int:
    return len(await stepwell.map(resize, range(count), concurrency=3))


@step(name="p.begin")
def begin(number: int) -> int:
    return number


async def in_two(number: int) -> int:
    return await resize.aio(await begin.aio(number))


@workflow(name="p.in_two_calls")
async def in_two_calls(count: int) -> int:
    return len(await stepwell.map(in_two, range(count), concurrency=2, label=lambda number: f"page {number}"))


@workflow(name="p.wrappers")
def wrappers(count: int) -> int:
    return len(stepwell.map(twice, range(count), concurrency=2))


@workflow(name="p.twice")
async def two_maps(count: int) -> int:
    first = await stepwell.map(resize, range(2))
    second = await stepwell.map(resize, range(count))
    return len(first) + len(second)


@workflow(name="p.empty")
async def of_nothing() -> list[int]:
    return [*await stepwell.map(resize, []), await resize.aio(0)]


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    """A well that works by the machine's clock, since its worker sleeps by it."""
    may_end.clear()
    yield open_well(url)
    may_end.set()


def progress_at(run: Run[Any], done: int) -> Progress:
    while (found := run.progress()).done < done:
        pass
    return found


@pytest.mark.parametrize(
    ("workflow", "begun", "total", "current"),
    [
        (plain, 3, 9, ("photo 2", "photo 3", "photo 4")),
        (awaiting, 2, 8, ("p.resize[2]", "p.resize[3]", "p.resize[4]")),
    ],
)
def test_progress_of_a_map_has_total_percent_and_the_items_under_way(
    well: Stepwell, workflow: Any, begun: int, total: int, current: tuple[str, ...]
) -> None:
    run = well.start(workflow, 8)
    found = progress_at(run, begun)
    assert (found.done, found.total, found.percent, found.current) == (begun, total, round(100 * begun / total, 1), current)
    may_end.set()
    assert run.result(WAIT) == 8
    over = run.progress()
    assert (over.done, over.total, over.percent, over.current) == (total, None, 100.0, ())
    assert "map" not in {token.node for token in well.load(run.execution_id).tokens.values()}


def test_items_of_several_calls_count_by_the_calls_of_the_first(well: Stepwell) -> None:
    run = well.start(in_two_calls, 6)
    found = progress_at(run, 6)  # items 0 and 1 are over; 2 and 3 have made one call each of two
    assert (found.done, found.total, found.percent, found.current) == (6, 12, 50.0, ("page 2", "page 3"))
    may_end.set()
    assert run.result(WAIT) == 6
    assert "6 items" in run.draw("mermaid")
    assert "done" not in run.draw("mermaid").split("classDef")[0]


def test_second_map_counts_for_itself(well: Stepwell) -> None:
    run = well.start(two_maps, 6)
    found = progress_at(run, 4)
    assert (found.done, found.total) == (4, 8)
    assert found.current == tuple(f"p.resize[{number}]" for number in range(2, 6))
    may_end.set()
    assert run.result(WAIT) == 8


def test_map_of_nothing_records_nothing(well: Stepwell) -> None:
    run = well.start(of_nothing)
    assert run.result(WAIT) == [0]
    assert [each.name for each in run.steps()] == ["p.resize"]


@pytest.mark.parametrize("workflow", [plain, awaiting, wrappers])
def test_picture_shows_a_map_as_one_node(well: Stepwell, workflow: Any) -> None:
    may_end.set()
    run = well.start(workflow, 5)
    assert run.result(WAIT) == 5
    name = "twice" if workflow is wrappers else "p.resize"
    picture = run.draw("mermaid")
    assert f"{name}: 5 items" in picture
    assert picture.count("resize") - picture.count("p.resize: 5 items") <= 2  # the call before the map


@pytest.mark.parametrize("workflow", [plain, awaiting, wrappers, two_maps])
def test_maps_end_the_same_wherever_the_run_crashes(workflow: Any) -> None:
    may_end.set()
    crash_everywhere(workflow, 3)
