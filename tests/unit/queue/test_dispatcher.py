"""The dispatcher claims no more than there is room for, survives a store that is away, and leaves nothing claimed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from stepwell.clock import FakeClock
from stepwell.errors import CommitUnknown, EngineUnavailable, StoreFull, StoreUnavailable
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Claimed, ClaimItems
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver
from stepwell.queue.dispatcher import BATCH, Dispatcher
from stepwell.stores.memory.store import MemoryStore
from stepwell.testing.conformance.samples import add, statuses, stored


class Desk:
    """An engine that has so many places, and says what it was given."""

    name = "desk"
    concurrent_starts = 1

    def __init__(self, places: int, on_start: Callable[[Claimed], None]) -> None:
        self.room, self._on_start = places, on_start

    async def workflows(self) -> tuple[str, ...]:
        return ("orders",)

    async def start(self, claimed: Claimed) -> None:
        self.room -= 1
        self._on_start(claimed)

    concurrent_starts = 1

    def on_room(self, call: Callable[[], None]) -> None:
        """It never has more."""

    async def cancel(self, execution_id: str) -> None:
        raise NotImplementedError


class Bureau:
    """A dispatcher on a store of its own."""

    def __init__(self, items: int, places: int, on_start: Callable[[Claimed], None]) -> None:
        clock = FakeClock()
        self.store = MemoryStore(clock, Limits())
        self.store.open()
        add(self.store, *(f"i{number}" for number in range(items)))
        self.limits: list[int] = []
        driver = AsyncDriver(GroupCommit(self._write, is_instant=True), self.store, is_open=True)
        self.desk, self.notifications = Desk(places, on_start), Notifications(self.store)
        self.dispatcher = Dispatcher(
            engine=self.desk,
            store=self.store,
            driver=driver,
            notifications=self.notifications,
            clock=clock,
            holder="d",
            lease_seconds=30,
            poll_seconds=3_600,
        )

    def _write(self, units):
        self.limits += [unit.limit for unit in units if isinstance(unit, ClaimItems)]
        return self.store.write(units)

    def count(self) -> Counter[str]:
        return Counter(statuses(self.store).values())


def test_items_claimed_after_a_stop_are_given_back() -> None:
    """T40: nothing waits for the end of a claim whose dispatcher has gone."""
    started: list[str] = []

    def stop_in_the_second_batch(claimed: Claimed) -> None:
        started.append(claimed.item_id)
        if len(started) > BATCH:
            bureau.dispatcher.stop()

    bureau = Bureau(5 * BATCH, 4 * BATCH, stop_in_the_second_batch)
    asyncio.run(bureau.dispatcher.run())
    assert bureau.limits == [BATCH, BATCH]
    assert bureau.count() == {"CLAIMED": len(started), "QUEUED": 5 * BATCH - len(started)}


@pytest.mark.parametrize(
    ("error", "attempts"), [(StoreUnavailable(), 0), (CommitUnknown("c"), 0), (EngineUnavailable("off"), 0), (ValueError("bad"), 1)]
)
def test_start_that_no_store_or_engine_answers_uses_up_no_attempt(error: Exception, attempts: int) -> None:
    def fail(_: Claimed) -> None:
        bureau.dispatcher.stop()
        raise error

    bureau = Bureau(1, 1, fail)
    asyncio.run(bureau.dispatcher.run())
    item = stored(bureau.store, "i0")
    assert (item.status, item.attempts) == ("QUEUED", attempts)


def dispatch_after(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
    """Dispatch one item, with an engine that raises these when it is asked what it can run, before it answers."""
    monkeypatch.setattr("stepwell.runtime.periodic.BACKOFF_SECONDS", (0.001,))
    bureau = Bureau(1, 1, lambda _: bureau.dispatcher.stop())
    waiting = iter(errors)

    async def workflows() -> tuple[str, ...]:
        if (error := next(waiting, None)) is not None:
            raise error
        return ("orders",)

    bureau.desk.workflows = workflows  # type: ignore[method-assign]
    asyncio.run(bureau.dispatcher.run())
    assert bureau.count() == {"CLAIMED": 1}


def test_failed_lookup_of_workflow_names_is_retried_soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """T41: as one that cannot be claimed from; each reason and the recovery are logged once."""
    dispatch_after(monkeypatch, *[StoreUnavailable("away")] * 3, StoreFull("full"))
    assert caplog.messages == [
        "the dispatcher failed, and tries again: away [SW-300]",
        "the dispatcher failed, and tries again: full [SW-301]",
        "the dispatcher works again, after 4 failures in a row",
    ]


def test_dispatcher_goes_on_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """T41: a worker that is alive and takes nothing would be the worst of ends."""
    dispatch_after(monkeypatch, RuntimeError("nobody expected this"))
    assert "unexpected" in caplog.text
    assert "nobody expected this" in caplog.text


@pytest.mark.parametrize("places", [1, 20, 64, 3 * BATCH])
def test_claims_never_ask_for_more_than_there_is_room_for(places: int) -> None:
    """T35: an item that is claimed has a place waiting for it."""
    most = 0

    def look(_: Claimed) -> None:
        nonlocal most
        most = max(most, bureau.count()["CLAIMED"])
        if not bureau.desk.room:
            bureau.dispatcher.stop()

    bureau = Bureau(4 * BATCH, places, look)
    asyncio.run(bureau.dispatcher.run())
    assert most == places
    assert bureau.count()["CLAIMED"] == places


async def until(is_so: Callable[[], object]) -> None:
    """Let the others on the loop go on until something is so."""
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


def test_item_that_comes_after_an_empty_claim_is_claimed_on_its_notification() -> None:
    """The poll is an hour away."""

    async def run() -> None:
        bureau = Bureau(0, 8, lambda _: bureau.dispatcher.stop())
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        await until(lambda: bureau.limits)
        add(bureau.store, "late")
        bureau.notifications.notify("queue")
        await asyncio.wait_for(dispatching, 60)
        assert bureau.count() == {"CLAIMED": 1}

    asyncio.run(run())


def test_notifications_that_come_together_cause_one_claim() -> None:
    async def run() -> None:
        bureau = Bureau(0, 8, lambda _: None)
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        await until(lambda: bureau.limits)
        await asyncio.sleep(0)
        for _ in range(100):
            bureau.notifications.notify("queue")
        await until(lambda: len(bureau.limits) == 2)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(bureau.limits) == 2
        bureau.dispatcher.stop()
        await dispatching

    asyncio.run(run())


def test_dispatcher_without_room_sleeps_on_news_that_it_can_do_nothing_about() -> None:
    """Until there is room again: it must not look for that without end, on a loop that others need."""

    async def run() -> None:
        bureau = Bureau(1, 1, lambda _: None)
        asked: list[None] = []

        async def workflows() -> tuple[str, ...]:
            asked.append(None)
            return ("orders",)

        bureau.desk.workflows = workflows  # type: ignore[method-assign]
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        await until(lambda: len(asked) == 2)  # by then it has found that there is no room left
        bureau.notifications.notify("queue")
        before = len(asked)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(asked) - before <= 2
        bureau.dispatcher.stop()
        await dispatching

    asyncio.run(asyncio.wait_for(run(), 60))
