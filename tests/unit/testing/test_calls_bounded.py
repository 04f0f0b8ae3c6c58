"""A signal is taken once, and a map makes no more calls at a time than it was told."""

from __future__ import annotations

import asyncio

import stepwell
from stepwell import Status, step, workflow
from stepwell.testing import SkippingClock, TestWell, rehearse

busy: list[int] = [0]
most: list[int] = [0]


@workflow
async def hears_twice(_: None) -> list[int]:
    return [await stepwell.wait_signal("go"), await stepwell.wait_signal("go")]


def test_signal_that_was_taken_is_not_heard_again_when_the_run_is_taken_up_again() -> None:
    clock = SkippingClock()
    with TestWell(clock) as well:
        run = well.start(hears_twice)
        run.signal("go", 1)
        clock.advance("1d")
        run.signal("anything")  # brings it to a worker again
        clock.advance("1d")
        assert run.status() is Status.WAITING
        run.signal("go", 2)
        assert run.result() == [1, 2]


@step
async def crowded(number: int) -> int:
    busy[0] += 1
    most[0] = max(most[0], busy[0])
    await asyncio.sleep(1)
    busy[0] -= 1
    return number


@workflow
async def bounded(size: int) -> list[int]:
    return await stepwell.map(crowded, range(size), concurrency=3)


def test_map_makes_as_many_calls_at_a_time_as_it_may() -> None:
    busy[0] = most[0] = 0
    assert rehearse(bounded, 10).result == list(range(10))
    assert most[0] == 3
