"""Sessions that give way on the loop: by twos, when the request is answered, and never for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stepwell.runtime.loop_way import LoopWay

WAIT = 60  # for what must happen; reached only by a failing test


class Road:
    """A way, and who has gone on, in order."""

    def __init__(self) -> None:
        self.is_taken = False
        self.way = LoopWay(lambda: self.is_taken)
        self.gone: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _go(self, number: int) -> None:
        if (turn := self.way.give()) is not None:
            await turn
        self.gone.append(number)

    async def send(self, count: int) -> None:
        """So many who come in one turn."""
        self.tasks += [asyncio.ensure_future(self._go(number)) for number in range(count)]
        await asyncio.sleep(0)

    async def all_gone(self) -> None:
        await asyncio.gather(*self.tasks)


def on_a_loop(work: Callable[[Road], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(work(Road()), WAIT)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runtime.loop_way._LONGEST_SECONDS", WAIT)
    monkeypatch.setattr("stepwell.runtime.loop_way._AFTER_SECONDS", 0)


def test_nobody_stands_aside_without_a_request() -> None:
    async def work(road: Road) -> None:
        await road.send(5)
        assert road.gone == [0, 1, 2, 3, 4]  # in the very turn they came in

    on_a_loop(work)


def test_those_who_stand_aside_go_on_by_twos_when_the_request_is_answered() -> None:
    async def work(road: Road) -> None:
        road.is_taken = True
        await road.send(5)
        for _ in range(10):
            await asyncio.sleep(0)
        assert road.gone == []
        road.is_taken = False
        road.way.clear()
        seen: list[int] = []
        while len(road.gone) < 5:
            await asyncio.sleep(0)
            seen.append(len(road.gone))
        assert road.gone == [0, 1, 2, 3, 4]
        assert [count for count in dict.fromkeys(seen) if count] == [2, 4, 5]

    on_a_loop(work)


def test_turns_are_short_for_a_moment_after_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runtime.loop_way._AFTER_SECONDS", WAIT)

    async def work(road: Road) -> None:
        road.way.clear()
        await road.send(3)
        assert road.gone == []
        await road.all_gone()
        assert road.gone == [0, 1, 2]

    on_a_loop(work)


def test_nobody_stands_aside_for_long_however_many_requests_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runtime.loop_way._LONGEST_SECONDS", 0.001)

    async def work(road: Road) -> None:
        road.is_taken = True
        await road.send(5)
        assert road.gone == []
        await road.all_gone()
        assert road.gone == [0, 1, 2, 3, 4]
        assert road.is_taken

    on_a_loop(work)


def test_who_comes_later_does_not_overtake() -> None:
    async def work(road: Road) -> None:
        road.is_taken = True
        await road.send(4)
        road.is_taken = False
        road.way.clear()
        late = asyncio.ensure_future(road._go(9))
        await asyncio.gather(late, *road.tasks)
        assert road.gone == [0, 1, 2, 3, 9]

    on_a_loop(work)


def test_who_is_cancelled_holds_up_nobody() -> None:
    async def work(road: Road) -> None:
        road.is_taken = True
        await road.send(4)
        for task in road.tasks[:3]:
            task.cancel()
        road.is_taken = False
        road.way.clear()
        await road.tasks[3]
        assert road.gone == [3]

    on_a_loop(work)


def test_clearing_where_nobody_stands_aside_is_nothing() -> None:
    async def work(road: Road) -> None:
        road.way.clear()
        await asyncio.sleep(0)
        await road.send(2)
        assert road.gone == [0, 1]

    on_a_loop(work)
