"""What a group of writes is news of: nothing that was claimed with it, and no slot that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stepwell.clock import FakeClock
from stepwell.errors import StoreUnavailable
from stepwell.model.commit import Commit, Deletion, Outcome, Rest, Unit, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, ItemMark, ItemStatus, PutQueue, QueueSettings
from stepwell.pipeline.notifications import QUEUE, Notifications
from stepwell.queue.dispatcher_wakeup import DispatcherWakeup, WriteNotices
from stepwell.stores.memory.store import MemoryStore
from stepwell.testing.conformance.samples import SampleExecution, new_item, status

ITEM = Claimed("i", "default", "orders", 1, "e", b"null", 1, 1, 0)
ALONE = replace(ITEM, is_alone=True)


def ask(*names: str) -> Enqueue:
    return Enqueue(tuple(new_item(name) for name in names or ("i",)))


def moved(to: ItemStatus, item_id: str = "i") -> Commit:
    """The last commit of an item's execution, or one that is not its last."""
    rest = None if to is ItemStatus.DISPATCHED else Rest(None, is_final=True)
    run = SampleExecution(MemoryStore(FakeClock(), Limits()), "e")
    return run.creation(status("RUNNING"), rest=rest, mark=ItemMark(item_id, to))


def again(item_id: str) -> Commit:
    """The commit that has the execution of an item wait for its turn."""
    return replace(moved(ItemStatus.COMPLETED), rest=Rest(), mark=ItemMark(item_id, ItemStatus.PENDING))


END = moved(ItemStatus.COMPLETED)


def is_news(news: WriteNotices, *units: Unit, claim: Outcome | None = None) -> bool:
    outcomes: list[Outcome] = [Written([place]) for place in range(len(units))]
    left, told = news.of(units, outcomes, claim)
    assert [*left] in ([*units], [])
    assert len(left) == len(told)
    return bool(left)


def with_one_alone() -> WriteNotices:
    news = WriteNotices()
    assert not is_news(news, ask(), claim=Written([ALONE]))
    return news


@pytest.mark.parametrize(
    ("claim", "left"),
    [(Written([ITEM]), [0, 2]), (Written([replace(ITEM, item_id="j")]), [0, 1, 2]), (StoreUnavailable(), [0, 1, 2])],
)
def test_request_whose_item_was_claimed_is_no_news(claim: Outcome, left: list[int]) -> None:
    units: list[Unit] = [Deletion("x"), ask(), ask("i", "k")]
    outcomes: list[Outcome] = [Written([place]) for place in range(3)]
    assert WriteNotices().of(units, outcomes, claim) == ([units[place] for place in left], [outcomes[place] for place in left])


def test_end_of_an_item_that_was_alone_is_no_news_but_is_looked_after_once() -> None:
    news = with_one_alone()
    assert not news.is_look_due
    assert not is_news(news, END)
    assert news.is_look_due
    news.looks()
    assert not news.is_look_due


def test_item_that_is_sent_back_is_news_and_waits_for_the_slots_of_others() -> None:
    news = with_one_alone()
    assert is_news(news, again("j"))
    assert is_news(news, END)
    assert is_news(with_one_alone(), again("i"))


def test_end_of_an_item_that_was_not_alone_is_news() -> None:
    news = WriteNotices()
    assert not is_news(news, ask(), claim=Written([ITEM]))
    assert is_news(news, END)
    assert not news.is_look_due


def test_item_is_alone_until_its_end_however_many_commits_it_has() -> None:
    news = with_one_alone()
    assert is_news(news, moved(ItemStatus.DISPATCHED))  # left to the pulse, which makes nothing of it
    assert not is_news(news, END)


def test_end_of_another_item_leaves_one_alone() -> None:
    """It frees a slot, and asks for none."""
    news = with_one_alone()
    assert is_news(news, moved(ItemStatus.COMPLETED, "noisy"))
    assert not is_news(news, END)


def test_item_ends_alone_once() -> None:
    """One that was driven again may have company."""
    news = with_one_alone()
    assert not is_news(news, END)
    assert is_news(news, END)


@pytest.mark.parametrize(
    "ask_for_more",
    [
        pytest.param(lambda news: is_news(news, ask("k")), id="a request that is left waiting"),
        pytest.param(lambda news: is_news(news, ask("k", "l"), claim=Written([replace(ITEM, item_id="k")])), id="one left in part"),
        pytest.param(lambda news: is_news(news, replace(END, mark=None, items=ask("k").items)), id="a request of a step"),
        pytest.param(lambda news: is_news(news, PutQueue(QueueSettings(name="default"))), id="a change of the settings"),
        pytest.param(lambda news: news.forget() or True, id="word of another process"),
    ],
)
def test_item_is_not_alone_any_more_once_something_may_wait(ask_for_more: Callable[[WriteNotices], bool]) -> None:
    news = with_one_alone()
    assert ask_for_more(news)
    assert is_news(news, END)


def test_what_has_nothing_to_do_with_the_queue_leaves_an_item_alone() -> None:
    news = with_one_alone()
    assert is_news(news, Unlock("lock", "me", 1))
    assert not is_news(news, END)


def test_end_that_others_wait_for_is_news_for_them() -> None:
    news = with_one_alone()
    assert is_news(news, replace(END, nudges=("parent",)))


CLAIM = ClaimItems("d", 30, 8)


@pytest.mark.parametrize(("units", "is_covered"), [([END, CLAIM], True), ([CLAIM], True), ([CLAIM, END], False), ([END], False)])
def test_claim_at_the_end_of_a_group_finds_what_the_others_of_it_have_freed(units: list[Unit], is_covered: bool) -> None:
    async def run() -> None:
        news, pulse = WriteNotices(), Notifications(MemoryStore(FakeClock(), Limits()))
        with DispatcherWakeup(pulse) as bell, pulse.listen(QUEUE) as other:
            news.bell = bell
            pulse.written(units, [Written() for _ in units], but=news.covered(units))
            assert bell.has_news is (END in units and not is_covered)
            assert other._has_heard is (END in units)

    asyncio.run(run())


def test_bell_is_deaf_to_news_that_was_covered_but_not_to_what_came_after() -> None:
    async def run() -> None:
        with DispatcherWakeup(Notifications(MemoryStore(FakeClock(), Limits()))) as bell:
            bell.wake()
            await asyncio.sleep(0)
            bell.cover()
            assert not await bell.heard(0)
            bell.wake()
            assert await bell.heard(60)
            bell.hush()
            bell.cover()
            bell.ring()
            bell.cover()
            assert await bell.heard(60)

    asyncio.run(run())
