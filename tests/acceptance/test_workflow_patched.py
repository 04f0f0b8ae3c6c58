"""``patched``: what a run has passed it goes the old way, what comes after goes the new way, as often as it is taken up again."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.polling import until

import stepwell
from stepwell import Status, Stepwell, step, workflow
from stepwell.testing import crash_everywhere

WAIT = 30


@step
async def old_way(number: int) -> str:
    return f"old {number}"


@step
async def new_way(number: int) -> str:
    return f"new {number}"


async def either(number: int) -> str:
    return await (new_way(number) if stepwell.patched("other way") else old_way(number))


@workflow
async def patched_twice(number: int) -> list[str]:
    first = await either(number)
    await stepwell.sleep("1h")
    return [first, await either(number + 1)]


def test_new_way_is_kept_whenever_the_run_is_taken_up_again():
    """T30: the answer of ``patched`` lands with the call that it led to, or not at all."""
    assert crash_everywhere(patched_twice, 1).result == ["new 1", "new 2"]


def take_up(url: str, program: Any, signal: str = "") -> list[str]:
    """Have a worker take the run up with this program, until it has heard a signal and waits for another, or has ended."""
    with Stepwell(url) as well:
        run = well.start(program, execution_id="r")
        if signal:
            run.signal(signal)
            until(lambda: any(signal in name for name in well.load("r").steps))
        until(lambda: run.status() not in (Status.PENDING, Status.RUNNING))
        return [name for name in well.load("r").steps if "_way" in name]


def test_rounds_of_a_loop_that_were_made_before_stay_old_and_later_ones_are_new(file_url: str):
    @workflow(name="patched-rounds")
    async def before() -> None:
        for number in range(3):
            await old_way(number)
            await stepwell.wait_signal(f"go {number}")

    assert take_up(file_url, before) == ["old_way"]
    assert take_up(file_url, before, "go 0") == ["old_way", "old_way#2"]

    @workflow(name="patched-rounds")
    async def after() -> list[str]:
        made: list[str] = []
        for number in range(3):
            made.append(await either(number))
            await stepwell.wait_signal(f"go {number}")
        return made

    assert take_up(file_url, after, "go 1") == ["old_way", "old_way#2", "new_way"]
    with Stepwell(file_url) as well:
        well.run("r").signal("go 2")
        assert well.run("r").result(WAIT) == ["old 0", "old 1", "new 2"]


def test_run_that_waits_right_behind_the_place_has_passed_it(file_url: str):
    @workflow(name="patched-wait")
    async def before() -> None:
        await stepwell.wait_signal("go")

    assert take_up(file_url, before) == []

    @workflow(name="patched-wait")
    async def after() -> str:
        made = await new_way(1) if stepwell.patched("one more step") else "nothing"
        await stepwell.wait_signal("go")
        return made

    with Stepwell(file_url) as well:
        well.run("r").signal("go")
        assert well.run("r").result(WAIT) == "nothing"
        assert well.start(after, execution_id="s").execution_id == "s"
        well.run("s").signal("go")
        assert well.run("s").result(WAIT) == "new 1"


def test_each_branch_knows_by_itself_what_it_has_passed(file_url: str):
    @workflow(name="patched-branches")
    async def before() -> None:
        async def left() -> None:
            await old_way(1)
            await stepwell.wait_signal("left")

        async def right() -> None:
            await stepwell.wait_signal("right")
            await old_way(2)

        await asyncio.gather(left(), right())

    assert take_up(file_url, before) == ["1/old_way"]

    @workflow(name="patched-branches")
    async def after() -> list[str]:
        async def left() -> str:
            made = await either(1)
            await stepwell.wait_signal("left")
            return made

        async def right() -> str:
            await stepwell.wait_signal("right")
            return await either(2)

        return list(await asyncio.gather(left(), right()))

    assert take_up(file_url, after, "right") == ["1/old_way", "2/new_way"]
    with Stepwell(file_url) as well:
        well.run("r").signal("left")
        assert well.run("r").result(WAIT) == ["old 1", "new 2"]
