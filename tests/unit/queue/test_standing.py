"""The claim that an idle dispatcher leaves with the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest
from msgspec.structs import replace

from stepwell.errors import StepwellError, StoreUnavailable
from stepwell.model.commit import Deletion, Written
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, NewItem
from stepwell.queue.dispatcher_wakeup import ClaimOffer

CLAIM = ClaimItems("me", 30.0, 7, (), ("orders",))
ITEM = Claimed("i", "default", "orders", 1, "e", b"null", 1, 1, 0, "default", 0)


def ask(**fields: object) -> Enqueue:
    item = NewItem(item_id="i", workspace_id="default", workflow_id="orders", version=1, execution_id="e", input=b"null")
    return Enqueue((NewItem(**{name: getattr(item, name) for name in item.__struct_fields__} | fields),))  # type: ignore[arg-type]


def not_here(_: Claimed) -> bool:
    """An engine that has to wait before it can start anything."""
    return False


def on_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def test_write_that_asks_for_a_run_takes_the_claim_along_once():
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: CLAIM, not_here)
        assert standing.take([Deletion("x")]) is None
        assert standing.take([Deletion("x"), ask()]) is ride
        assert ride.units == (CLAIM,)
        assert standing.take([ask()]) is None
        ride.tell(Written([ITEM]))
        assert await ride.claimed == [ITEM]

    on_a_loop(test)


@pytest.mark.parametrize("outcome", [Written([ITEM]), Written(), StoreUnavailable("away"), ValueError()])
def test_request_is_under_way_until_what_it_brought_has_started(outcome: object):
    async def test() -> None:
        told: list[tuple[int, bool]] = []
        started: list[Claimed] = []
        standing = ClaimOffer()
        standing.when_told = lambda: told.append((len(started), standing.is_under_way()))
        ride = standing.offer(lambda: CLAIM, lambda item: started.append(item) is None)
        assert not standing.is_under_way()
        assert standing.take([ask()]) is ride
        assert standing.is_under_way()
        ride.tell(outcome)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert told == [(len(started), False)]
        assert started == ([*outcome.answers] if isinstance(outcome, Written) else [])
        if ride.claimed.done():
            ride.claimed.exception()

    on_a_loop(test)


def test_no_request_is_under_way_where_there_was_no_room_for_its_claim():
    async def test() -> None:
        standing = ClaimOffer()
        standing.offer(lambda: None, not_here)
        assert standing.take([ask()]) is None
        assert not standing.is_under_way()

    on_a_loop(test)


@pytest.mark.parametrize("later", [{"delay_ms": 1}, {"run_at_ms": 5}])
def test_items_for_later_leave_the_claim_where_it_is(later: dict[str, int]):
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: CLAIM, not_here)
        assert standing.take([ask(**later)]) is None
        assert standing.withdraw(ride)

    on_a_loop(test)


def test_claim_that_was_withdrawn_is_nobodys():
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: CLAIM, not_here)
        assert standing.withdraw(ride)
        assert standing.take([ask()]) is None

    on_a_loop(test)


def test_claim_that_is_on_its_way_cannot_be_withdrawn():
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: CLAIM, not_here)
        standing.take([ask()])
        assert not standing.withdraw(ride)

    on_a_loop(test)


def test_dispatcher_without_room_claims_nothing():
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: None, not_here)
        assert standing.take([ask()]) is None
        assert standing.withdraw(ride)

    on_a_loop(test)


def test_claim_is_either_withdrawn_or_on_its_way_whoever_is_first():
    """A thread writes and the loop withdraws at the same moment, many times: what is claimed is never unheard of."""

    async def test() -> None:
        for _ in range(300):
            standing, gate = ClaimOffer(), threading.Barrier(2)
            ride = standing.offer(lambda: CLAIM, not_here)
            taken: list[object] = []

            def write(standing: ClaimOffer = standing, gate: threading.Barrier = gate, taken: list[object] = taken) -> None:
                gate.wait(60)
                taken.append(standing.take([ask()]))

            thread = threading.Thread(target=write)
            thread.start()
            gate.wait(60)
            is_withdrawn = standing.withdraw(ride)
            thread.join()
            assert is_withdrawn is (taken == [None])

    on_a_loop(test)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), KeyboardInterrupt()])
def test_failure_of_the_write_is_the_claims_failure(error: BaseException):
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: CLAIM, not_here)
        standing.take([ask()])
        threading.Thread(target=ride.tell, args=(error,)).start()
        with pytest.raises(StepwellError):
            await ride.claimed

    on_a_loop(test)


def test_what_can_start_at_once_does_and_the_claim_stands_there_again():
    async def test() -> None:
        standing, started = ClaimOffer(), list[Claimed]()
        ride = standing.offer(lambda: CLAIM, lambda item: not started.append(item))
        for turn in (1, 2):
            assert standing.take([ask()]) is ride
            ride.tell(Written([ITEM]))
            await asyncio.sleep(0)
            assert started == [ITEM] * turn
            assert not ride.claimed.done()
        assert standing.withdraw(ride)
        assert standing.take([ask()]) is None

    on_a_loop(test)


OTHER = replace(ITEM, item_id="j")


@pytest.mark.parametrize(
    ("claimed", "startable", "is_awaited"),
    [
        pytest.param([ITEM, OTHER], {"i"}, False, id="one is left to start"),
        pytest.param([], set(), False, id="it got nothing, so that another look is called for"),
        pytest.param([ITEM] * CLAIM.limit, {"i"}, False, id="it got all that it asked for, so that there may be more"),
        pytest.param([ITEM], {"i"}, True, id="the dispatcher waits for it"),
    ],
)
def test_dispatcher_is_told_if_there_is_more_to_do(claimed: list[Claimed], startable: set[str], is_awaited: bool):
    async def test() -> None:
        standing = ClaimOffer()
        ride = standing.offer(lambda: CLAIM, lambda item: item.item_id in startable)
        standing.take([ask()])
        assert not is_awaited or not standing.withdraw(ride)
        ride.tell(Written(claimed))
        assert await ride.claimed == claimed
        assert ride.started == startable
        assert standing.take([ask()]) is None

    on_a_loop(test)


def test_what_is_started_is_not_inside_of_what_asked_for_it():
    inside: ContextVar[str] = ContextVar("inside", default="nothing")

    async def test() -> None:
        standing, seen = ClaimOffer(), list[str]()
        inside.set("the dispatcher")
        ride = standing.offer(lambda: CLAIM, lambda _: not seen.append(inside.get()))
        inside.set("a step")
        standing.take([ask()])
        ride.tell(Written([ITEM]))
        await asyncio.sleep(0)
        assert seen == ["the dispatcher"]

    on_a_loop(test)
