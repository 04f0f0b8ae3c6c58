"""The dispatcher: two claims are under way in busy times, for no more than there is room for; the end leaves nothing claimed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stepwell.clock import FakeClock
from stepwell.contract.engine import NotNow
from stepwell.errors import StoreUnavailable
from stepwell.model.commit import Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, ItemMark, ItemStatus
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver
from stepwell.queue.dispatcher import BATCH, Dispatcher
from stepwell.queue.dispatcher_wakeup import ClaimOffer, PiggybackedClaim, WriteNotices
from stepwell.stores.memory.store import MemoryStore
from stepwell.testing.conformance.samples import SampleExecution, add, new_item, statuses


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

    def start_now(self, claimed: Claimed) -> bool:
        self.room -= 1
        self._on_start(claimed)
        return True

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
        self.desk, self.standing, self.pulse = Desk(places, on_start), ClaimOffer(), Notifications(self.store)
        self.news = WriteNotices()
        self.dispatcher = Dispatcher(
            engine=self.desk,
            store=self.store,
            driver=driver,
            pulse=self.pulse,
            clock=clock,
            holder="d",
            lease_seconds=30,
            poll_seconds=3_600,
            standing=self.standing,
            news=self.news,
        )

    def _write(self, units):
        self.limits += [unit.limit for unit in units if isinstance(unit, ClaimItems)]
        return self.store.write(units)

    def count(self) -> Counter[str]:
        return Counter(statuses(self.store).values())


class HeldClaims:
    """Claims that find nothing, and are answered when a test says so; with what they asked for."""

    def __init__(self, bureau: Bureau, limits: list[int]) -> None:
        self._limits, self.is_asked, self.may_answer = limits, asyncio.Event(), asyncio.Event()
        bureau.dispatcher._claim = self._claim  # type: ignore[method-assign]

    async def _claim(self, limit: int, _names: tuple[str, ...]) -> list[Claimed]:
        self._limits.append(limit)
        self.is_asked.set()
        await self.may_answer.wait()
        return []


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


def dispatch_after(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
    """Dispatch one item, with an engine that raises these when it is asked what it can run, before it answers."""
    monkeypatch.setattr("stepwell.queue.dispatcher._AWAY_SECONDS", (0.001,))
    bureau = Bureau(1, 1, lambda _: bureau.dispatcher.stop())
    waiting = iter(errors)

    async def workflows() -> tuple[str, ...]:
        if (error := next(waiting, None)) is not None:
            raise error
        return ("orders",)

    bureau.desk.workflows = workflows  # type: ignore[method-assign]
    asyncio.run(bureau.dispatcher.run())
    assert bureau.count() == {"CLAIMED": 1}


def test_store_that_is_away_when_the_names_of_workflows_are_asked_for_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T41: as one that cannot be claimed from; nothing that was not expected."""
    dispatch_after(monkeypatch, StoreUnavailable("away"), StoreUnavailable("away"))
    assert [told.partition(":")[0] for told in caplog.messages] == ["the dispatcher could not claim from its store"] * 2


def test_dispatcher_goes_on_after_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """T41: a worker that is alive and takes nothing would be the worst of ends."""
    dispatch_after(monkeypatch, RuntimeError("nobody expected this"))
    assert "did not expect" in caplog.text
    assert "nobody expected this" in caplog.text


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
        def start(claimed: Claimed) -> None:
            started.append(claimed.item_id)
            assert not held.may_answer.is_set()
            bureau.dispatcher.stop()
            held.may_answer.set()

        bureau = Bureau(0, 8, start)
        held = HeldClaims(bureau, limits)
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        await held.is_asked.wait()
        ride = bureau.standing.take([Enqueue((new_item("a"),))])
        assert ride is not None
        limits.append(ride.units[0].limit)
        ride.tell(Written([item]))
        async with asyncio.timeout(60):
            await dispatching

    asyncio.run(run())
    assert started == ["a"]
    assert limits == [6, 2]  # what there is room for, between them


def claimed(name: str, attempts: int = 1) -> Claimed:
    return Claimed(name, "default", "orders", 3, f"of-{name}", b"null", 1, attempts, 0)


async def until(is_so: Callable[[], object]) -> None:
    """Let the others on the loop go on until something is so."""
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


async def board(bureau: Bureau, name: str) -> PiggybackedClaim:
    """A request that takes along the standing claim of a dispatcher that has nothing to do."""
    await until(lambda: bureau.limits and not bureau.dispatcher._asked and bureau.standing._is_offered())
    ride = bureau.standing.take([Enqueue((new_item(name),))])
    assert ride is not None
    return ride


def test_item_of_a_request_is_started_once_whoever_waits_for_its_claim() -> None:
    """At once, without a claim by the dispatcher; also if that was woken meanwhile and waits for it."""
    started: list[str] = []

    async def run() -> None:
        bureau = Bureau(0, 8, lambda item: started.append(item.item_id))
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        (await board(bureau, "a")).tell(Written([claimed("a")]))
        ride = await board(bureau, "b")
        assert started == ["a"]
        bureau.pulse.beat("queue")
        await until(lambda: ride.is_awaited)
        ride.tell(Written([claimed("b")]))
        await until(lambda: len(started) == 2)
        bureau.dispatcher.stop()
        await dispatching
        assert bureau.desk.room == 6

    asyncio.run(asyncio.wait_for(run(), 60))
    assert started == ["a", "b"]


@pytest.mark.parametrize("is_late", [True, False])
def test_news_that_comes_with_a_request_is_looked_into_as_soon_as_that_is_back(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim that went along may have been too early for it, and has all the room until it is done with: whether the dispatcher
    waits for it by then, or hears of both in one turn."""
    monkeypatch.setattr("stepwell.queue.dispatcher._QUIET_SECONDS", 3_600)

    async def run() -> None:
        bureau = Bureau(0, 8, lambda item: item.item_id == "b" and bureau.dispatcher.stop())
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        ride = await board(bureau, "a")
        add(bureau.store, "b")
        if not is_late:
            ride.tell(Written([]))
        bureau.pulse.beat("queue")
        if is_late:
            await until(lambda: ride.is_awaited)
            ride.tell(Written([claimed("a")]))
        await dispatching

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize(
    ("item", "refusal"),
    [(claimed("a", attempts=2), None), (claimed("a"), NotNow("busy")), (claimed("a"), RuntimeError("odd"))],
)
def test_item_that_cannot_start_at_once_is_started_as_always(item: Claimed, refusal: Exception | None) -> None:
    started: list[str] = []

    async def run() -> None:
        bureau = Bureau(0, 8, lambda each: started.append(each.item_id) or bureau.dispatcher.stop())

        def start_now(_: Claimed) -> bool:
            assert refusal is not None, "it may have ended a process before, and has to be started alone"
            raise refusal

        bureau.desk.start_now = start_now  # type: ignore[method-assign]
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        (await board(bureau, "a")).tell(Written([item]))
        await dispatching

    asyncio.run(asyncio.wait_for(run(), 60))
    assert started == ["a"]


def test_end_that_was_no_news_is_looked_after_once_when_there_was_none_for_a_while() -> None:
    """What time alone has brought meanwhile is found then, and not only by the next poll."""

    async def run() -> None:
        bureau = Bureau(0, 8, lambda item: item.item_id == "b" and bureau.dispatcher.stop())
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        ride = await board(bureau, "a")
        add(bureau.store, "b")
        brought = Written([replace(claimed("a"), is_alone=True)])
        assert bureau.news.of([Enqueue((new_item("a"),))], [Written()], brought) == ([], [])
        ride.tell(brought)
        end = SampleExecution(bureau.store, "of-a").creation(mark=ItemMark("a", ItemStatus.COMPLETED))
        assert bureau.news.of([end], [Written()], None) == ([], [])
        await dispatching
        assert len(bureau.limits) == 2

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("is_before", [True, False])
def test_one_claim_is_made_for_news_that_came_before_it_set_out_and_another_for_what_came_after(
    is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that was freed while a claim waited for the writer is found by that claim."""
    monkeypatch.setattr("stepwell.queue.dispatcher._QUIET_SECONDS", 3_600)
    claims: list[int] = []

    async def run() -> None:
        bureau = Bureau(0, 8, lambda _: None)
        held = HeldClaims(bureau, claims)
        dispatching = asyncio.ensure_future(bureau.dispatcher.run())
        await held.is_asked.wait()
        unit = ClaimItems("d", 30, 8)
        if not is_before:
            bureau.news.sets_out([unit])
        bureau.pulse.beat("queue")
        await asyncio.sleep(0)  # the bell has rung
        if is_before:
            bureau.news.sets_out([unit])
        held.may_answer.set()
        # When all is looked into, it rests, and leaves a claim for those who ask.
        await until(lambda: bureau.dispatcher._is_resting and bureau.standing._is_offered())
        bureau.dispatcher.stop()
        await dispatching

    asyncio.run(asyncio.wait_for(run(), 60))
    assert len(claims) == (1 if is_before else 2)


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
        await until(lambda: bureau.desk.room == 0 and bureau.dispatcher._is_resting)
        bureau.pulse.beat("queue")
        await until(lambda: bureau.dispatcher._bell and bureau.dispatcher._bell.has_news and bureau.dispatcher._is_resting)
        before = len(asked)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(asked) - before <= 2
        bureau.dispatcher.stop()
        await dispatching

    asyncio.run(asyncio.wait_for(run(), 60))
