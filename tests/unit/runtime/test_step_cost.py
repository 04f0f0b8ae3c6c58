"""The cost of a step from end to end: commits that are shared, and work that does not grow with what was done before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import stepwell
from stepwell import step, workflow
from stepwell.flow import call, define, each, parallel
from stepwell.testing import rehearse


@step
async def cheap(number: int) -> int:
    return number


@workflow
async def cheap_line(size: int) -> None:
    for number in range(size):
        await cheap(number)


@workflow
async def cheap_fan(size: int) -> None:
    await asyncio.gather(*(cheap(number) for number in range(size)))


@workflow
async def cheap_map(size: int) -> None:
    await stepwell.map(cheap, range(size), concurrency=8)


def declared_line(size: int) -> Any:
    return define("cheap-line", *(call("cheap", 1, name=f"n{number}") for number in range(size)))


def declared_fan(size: int) -> Any:
    return define("cheap-fan", parallel(branches={f"b{number}": call("cheap", 1) for number in range(size)}))


def declared_instances(size: int) -> Any:
    return define("cheap-instances", each(call("cheap", 1), count=size))


Program = Callable[[int], tuple[Any, ...]]
FANS: dict[str, Program] = {
    "gather": lambda size: (cheap_fan, size),
    "map": lambda size: (cheap_map, size),
    "parallel": lambda size: (declared_fan(size),),
    "each": lambda size: (declared_instances(size),),
}
PROGRAMS: dict[str, Program] = {**FANS, "calls": lambda size: (cheap_line, size), "sequence": lambda size: (declared_line(size),)}


def commits_of_steps(program: tuple[Any, ...]) -> int:
    """How many commits have the outputs of steps in them."""
    return len({event.revision for event in rehearse(*program).trace.events if event.kind == "step"})


@pytest.mark.parametrize("fan", ["gather", "parallel", "each"])
def test_completions_that_arrive_together_share_a_commit(fan: str) -> None:
    """The first one lands by itself, since nothing waits for company; what has gathered meanwhile lands with the next."""
    assert commits_of_steps(FANS[fan](40)) <= 2


def test_completions_of_a_bounded_map_share_commits_too() -> None:
    assert commits_of_steps(FANS["map"](40)) <= 15


def calls_per_step(program: Program, size: int) -> float:
    """Calls of functions, which no other process can slow down, for each step of a whole run."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    asked = program(size)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        rehearse(*asked, level="none")
    finally:
        sys.setprofile(before)
    return count / size


@pytest.mark.parametrize("shape", PROGRAMS)
def test_a_step_costs_no_more_when_hundreds_were_made_before_it(shape: str) -> None:
    assert calls_per_step(PROGRAMS[shape], 300) <= calls_per_step(PROGRAMS[shape], 60)
