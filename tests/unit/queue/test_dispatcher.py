"""The dispatcher: two claims are under way in busy times, for no more than there is room for; the end leaves nothing claimed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from stepwell.clock import FakeClock
from stepwell.errors import StoreUnavailable
from stepwell.model.commit import Written
from stepwell.model.limits import Limits
from stepwell.model.queue import Claimed, ClaimItems, Enqueue
from stepwell.queue.dispatcher import BATCH, Dispatcher
from stepwell.queue.standing import StandingClaim
from stepwell.state.operation import AsyncDriver
from stepwell.state.pulse import Pulse
from stepwell.stores.group import GroupCommit
from stepwell.stores.memory.store import MemoryStore
from stepwell.testing.conformance.queue_sample import add, new_item, statuses


class Desk:
    """An engine that has so many places, and says what it was given."""

    name = "desk"

    def __init__(self, places: int, on_start: Callable[[Claimed], None]) -> None:
        self.room, self._on_start = places, on_start

    async def workflows(self) -> tuple[str, ...]:
        return ("orders",)

    async def start(self, claimed: Claimed) -> None:
        self.room -= 1
        self._on_start(claimed)

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
        self.desk, self.standing = Desk(places, on_start), StandingClaim()
        self.dispatcher = Dispatcher(
            engine=self.desk,
            store=self.store,
            driver=driver,
            pulse=Pulse(self.store),
            clock=clock,
            holder="d",
            lease_seconds=30,
            standing=self.standing,
        )

    def _write(self, units):
        self.limits += [unit.limit for unit in units if isinstance(unit, ClaimItems)]
        return self.store.write(units)

    def count(self) -> Counter[str]:
        return Counter(statuses(self.store).values())


def test_what_was_claimed_ahead_is_given_back_at_the_end() -> None:
    """T40: nothing waits for the end of a claim whose dispatcher has gone."""
    started: list[str] = []

    def stop_at_the_second_batch(claimed: Claimed) -> None:
        started.append(claimed.item_id)
        if len(started) > BATCH:
            bureau.dispatcher.stop()

    bureau = Bureau(5 * BATCH, 4 * BATCH, stop_at_the_second_batch)
    asyncio.run(bureau.dispatcher.run())
    assert len(bureau.limits) > 2  # the third was under way when it stopped
    assert bureau.count() == {"CLAIMED": len(started), "PENDING": 5 * BATCH - len(started)}


def test_store_that_is_away_when_the_names_of_workflows_are_asked_for_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T41: as one that cannot be claimed from; nothing that was not expected."""
    monkeypatch.setattr("stepwell.queue.dispatcher._AWAY_SECONDS", (0.001,))
    bureau = Bureau(1, 1, lambda _: bureau.dispatcher.stop())
    answers = iter([StoreUnavailable("away"), StoreUnavailable("away")])

    async def workflows() -> tuple[str, ...]:
        if (error := next(answers, None)) is not None:
            raise error
        return ("orders",)

    bureau.desk.workflows = workflows  # type: ignore[method-assign]
    asyncio.run(bureau.dispatcher.run())
    assert bureau.count() == {"CLAIMED": 1}
    assert [told.partition(":")[0] for told in caplog.messages] == ["the dispatcher could not claim from its store"] * 2


@pytest.mark.parametrize("places", [1, 20, 64, 3 * BATCH])
def test_claims_under_way_never_ask_for_more_than_there_is_room_for(places: int) -> None:
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


def test_room_is_claimed_for_in_halves_once_there_is_more_than_it_holds() -> None:
    """While the items of one half are run, those of the other are claimed."""

    def stop_when_full(_: Claimed) -> None:
        if not bureau.desk.room:
            bureau.dispatcher.stop()

    bureau = Bureau(4 * BATCH, 2 * BATCH, stop_when_full)
    asyncio.run(bureau.dispatcher.run())
    assert bureau.limits == [BATCH, BATCH]


def test_request_takes_a_claim_along_while_the_dispatcher_waits_for_one() -> None:
    """Its item is started before that one is answered."""
    started: list[str] = []
    limits: list[int] = []
    item = Claimed("a", "default", "orders", 3, "of-a", b"null", 1, 1, 0)

    async def run() -> None:
        is_asked, is_answered = asyncio.Event(), asyncio.Event()

        async def claim(limit: int, _names: tuple[str, ...]) -> list[Claimed]:
            limits.append(limit)
            is_asked.set()
            await is_answered.wait()
            return []

        def start(claimed: Claimed) -> None:
            started.append(claimed.item_id)
            assert not is_answered.is_set()
            bureau.dispatcher.stop()
            is_answered.set()

        bureau = Bureau(0, 8, start)
        bureau.dispatcher._claim = claim  # type: ignore[method-assign]
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        await is_asked.wait()
        ride = bureau.standing.take([Enqueue((new_item("a"),))])
        assert ride is not None
        limits.append(ride.units[0].limit)
        ride.tell(Written([item]))
        async with asyncio.timeout(60):
            await dispatching

    asyncio.run(run())
    assert started == ["a"]
    assert limits == [6, 2]  # what there is room for, between them
