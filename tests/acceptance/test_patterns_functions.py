"""Patterns that functions have from Python: what docs/patterns.md says about them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import stepwell
from stepwell import step, workflow
from stepwell.testing import SkippingClock, TestWell


@pytest.fixture
def well() -> Iterator[TestWell]:
    with TestWell(SkippingClock()) as opened:
        yield opened


@step(name="patterns.label")
async def label(text: str) -> str:
    return f"<{text}>"


@workflow(name="patterns.gathering")
async def gathering(names: list[str]) -> str:
    """WCP-2, 3, 6, 7: those that are chosen run side by side, and are waited for."""
    done = await asyncio.gather(*(stepwell.wait_signal(name) for name in names))
    return await label(" ".join(done))


@workflow(name="patterns.factorial")
async def factorial(number: int) -> int:
    """WCP-22."""
    return 1 if number < 2 else number * await factorial(number - 1)


@workflow(name="patterns.cycling")
async def cycling(place: str) -> list[str]:
    """WCP-10: any place leads to any other, or out."""
    seen: list[str] = []
    while True:
        seen.append(place)
        match place:
            case "A" | "B":
                place = await stepwell.wait_signal(f"from {place}")
            case _:
                return seen


def test_function_waits_for_all_that_it_gathers(well: TestWell) -> None:
    run = well.start(gathering, ["a", "b"])
    run.signal("b", "second")
    well.clock.advance("1s")
    assert [offer.name for offer in run.progress().offers] == ["a"]
    run.signal("a", "first")
    assert run.result(60) == "<first second>"


def test_function_calls_itself_as_children(well: TestWell) -> None:
    assert well.start(factorial, 4, execution_id="f").result(60) == 24
    assert len(well.executions.list(workflow="patterns.factorial")) == 4


@pytest.mark.parametrize(("start", "way"), [("A", "BABx"), ("B", "x")])
def test_function_goes_around_from_any_place_to_any_other(well: TestWell, start: str, way: str) -> None:
    run = well.start(cycling, start)
    for here, there in zip(start + way, way, strict=False):
        run.signal(f"from {here}", there)
    assert run.result(60) == [start, *way]
