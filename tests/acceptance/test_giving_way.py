"""Items that waited in the queue give way on the loop to a request that is under way; one that comes with its request does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepwell import AsyncStepwell, workflow
from stepwell.flow.function import Workflow
from stepwell.model.commit import Lease
from stepwell.model.queue_item import Claimed
from stepwell.queue.dispatcher_wakeup import ClaimOffer, PiggybackedClaim
from stepwell.queue.first_commit import FirstCommit
from stepwell.queue.item import AsyncQueueItem
from stepwell.queue.local_engine import LocalEngine
from stepwell.runtime.worker import Worker

WAIT = 60  # for what must happen; reached only by a failing test


@pytest.fixture(params=["memory://", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if request.param == "memory://" else f"sqlite:///{tmp_path / 'well.db'}"


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runtime.loop_way._LONGEST_SECONDS", WAIT)


class Request:
    """A request that is under way for as long as a test likes."""

    def __init__(self, well: AsyncStepwell) -> None:
        self._standing: ClaimOffer = well._parts.queue.standing
        self._ride = PiggybackedClaim(lambda: None, lambda _: False, self._standing)
        self._standing._under_way.add(self._ride)

    def end(self) -> None:
        self._standing.arrived(self._ride)


async def until_it_stands_aside(item: AsyncQueueItem) -> None:
    """Wait until an item is claimed, and its session has had every chance to go on."""
    while (await item.refresh()).status not in ("CLAIMED", "DISPATCHED"):  # noqa: ASYNC110 - nobody is told of a claim
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0)


def run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT))  # type: ignore[arg-type]


def test_item_that_waited_begins_when_the_request_is_answered(url: str) -> None:
    begun: list[int] = []

    @workflow(name="aside-begin")
    async def note(number: int) -> int:
        begun.append(number)
        return number

    async def work() -> None:
        async with AsyncStepwell(url) as well:
            request = Request(well)
            item = await well.enqueue(note, 1, delay=0.001)
            await until_it_stands_aside(item)
            assert begun == []
            request.end()
            assert await item.result(WAIT) == 1

    run(work())


def test_item_that_waited_ends_when_the_request_is_answered(url: str) -> None:
    async def work() -> None:
        may_end, has_ended = asyncio.Event(), asyncio.Event()

        @workflow(name="aside-end")
        async def wait() -> str:
            await may_end.wait()
            has_ended.set()
            return "ended"

        async with AsyncStepwell(url) as well:
            item = await well.enqueue(wait, delay=0.001)
            await until_it_stands_aside(item)
            request = Request(well)
            may_end.set()
            await has_ended.wait()
            await until_it_stands_aside(item)
            request.end()
            assert await item.result(WAIT) == "ended"

    run(work())


def test_item_that_comes_with_its_request_gives_way_to_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: set[str] = set()
    giving_way: dict[str, bool] = {}
    start_now, take_new = LocalEngine.start_now, Worker.take_new

    def note_start(self: LocalEngine, claimed: Claimed) -> bool:
        at_once.add(claimed.item_id)
        return start_now(self, claimed)

    def note_way(self: Worker, recorder: FirstCommit, lease: Lease, workflow: Workflow[..., Any]) -> None:
        giving_way[recorder.claimed.item_id] = recorder.way is not None
        take_new(self, recorder, lease, workflow)

    monkeypatch.setattr(LocalEngine, "start_now", note_start)
    monkeypatch.setattr(Worker, "take_new", note_way)

    @workflow(name="aside-alone")
    async def note(number: int) -> int:
        return number

    async def work() -> None:
        async with AsyncStepwell(url) as well:
            await (await well.enqueue(note, 0, delay=0.001)).result(WAIT)
            while not at_once:  # whether the dispatcher's claim stands there at the moment is chance
                await (await well.enqueue(note, 1)).result(WAIT)

    run(work())
    assert giving_way == {item_id: item_id not in at_once for item_id in giving_way}
    assert {*giving_way.values()} == {True, False}
