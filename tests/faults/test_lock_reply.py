"""T25: the store is away, or its reply to an acquire is lost. Nobody runs who was not told to, and nothing stays taken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from tests.faults.hooks import at, points_of
from tests.support import store_urls

from stepwell import Answer, AsyncStepwell, CommitUnknown, FakeClock, LockHeld, Stepwell, StepwellError, StoreUnavailable
from stepwell.fault_points import armed
from stepwell.model.commit import Acquire, Lease, Outcome, Unit, Unlock, Written
from stepwell.pipeline.notifications import LOCK
from stepwell.testing.store_access import parts_of, store_under, write_unit

url = store_urls.url


@pytest.fixture
def well(url: str, clock: FakeClock) -> Iterator[Stepwell]:
    with Stepwell(url, clock=clock, worker=False) as well:
        yield well


def fail() -> None:
    raise OSError("the reply is lost")


def always(point: str) -> Callable[[str], None]:
    return lambda name: fail() if name == point else None


def watch(well: Any, monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """The units that reach the store."""
    units: list[Unit] = []
    write = store_under(well).write
    monkeypatch.setattr(store_under(well), "write", lambda group: units.extend(group) or write(group))
    return units


def test_a_holder_whose_reply_was_lost_recognises_itself(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    """T25: it asks again under the same name, and has the lock that it had been granted; no second fence is given."""
    before = well.lock("other").acquire()
    units = watch(well, monkeypatch)
    lock = well.lock("door")
    with armed(at("store.committed", 1, fail)):
        held = lock.acquire()
    assert [type(unit) for unit in units] == [Acquire, Acquire]
    assert units[0] == units[1]
    with pytest.raises(LockHeld):
        well.lock("door").acquire()
    with well.state.transaction(lock=held) as tx:
        tx.state(well.state.globals).set("k", 1)
    assert lock.release() is True
    after = well.lock("door").acquire()
    assert before.fence < held.fence < after.fence


def test_a_task_whose_reply_was_lost_recognises_itself(url: str, clock: FakeClock) -> None:
    """T25."""

    async def main() -> None:
        async with AsyncStepwell(url, clock=clock, worker=False) as well:
            lock = well.lock("door")
            with armed(at("store.committed", 1, fail)):
                held = await lock.acquire()
            async with well.state.transaction(lock=held) as tx:
                tx.state(well.state.globals).set("k", 1)
            assert await lock.release() is True

    asyncio.run(main())


def test_a_lock_whose_replies_are_all_lost_is_an_orphan_that_expires(well: Stepwell, clock: FakeClock) -> None:
    """T25: the caller does not run; the lock is taken, by nobody, for no longer than its lease."""
    with armed(always("store.committed")), pytest.raises(CommitUnknown):
        well.lock("door", seconds=30).acquire()
    assert parts_of(well).lock_renewal.count == 0, "nobody renews what nobody holds"
    with pytest.raises(LockHeld):
        well.lock("door").acquire()
    clock.advance(30.1)
    well.lock("door").acquire()


def points_before_the_commit(act: Callable[[], object]) -> list[str]:
    points = points_of(act)
    return points[: points.index("store.committed")]


def test_a_lock_that_the_store_could_not_grant_is_free(well: Stepwell) -> None:
    """T25: not acquired means that nobody runs, and nothing is left behind."""
    for point in points_before_the_commit(well.lock("other").acquire):
        ran = False
        with armed(at(point, 1, fail)), pytest.raises(OSError, match="lost"), well.lock(point):
            ran = True
        assert not ran
        well.lock(point).acquire()


def test_a_lock_on_a_store_that_is_away_is_not_acquired(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    """T25."""

    def away(units: list[Unit]) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as broken:
        broken.setattr(store_under(well), "write", away)
        for timeout in (0, 60, None):
            with pytest.raises(StoreUnavailable):
                well.lock("door", timeout=timeout).acquire()
    assert LOCK not in parts_of(well).notifications.topics
    well.lock("door").acquire()


def test_a_waiter_whose_reply_was_lost_recognises_itself(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    """T25: it waits, is woken, is granted the lock, and does not hear of it."""
    lock, asked, losses = well.lock("door"), threading.Event(), list[Unit]()
    lock.acquire()
    write = store_under(well).write

    def write_and_lose(units: list[Unit]) -> list[Outcome]:
        outcomes = write(units)
        granted = [unit for unit, outcome in zip(units, outcomes, strict=True) if is_grant(unit, outcome)]
        asked.set()
        if granted and not losses:
            losses.extend(granted)
            raise CommitUnknown
        return outcomes

    monkeypatch.setattr(store_under(well), "write", write_and_lose)
    with ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(well.lock("door", timeout=60).acquire)
        assert asked.wait(60)
        with suppress(CommitUnknown):  # it may land in one group with the waiter's request, and that group's reply is lost
            lock.release()
        held = waiter.result(60)
    assert [unit.holder for unit in losses if isinstance(unit, Acquire)] == [held.holder]
    with well.state.transaction(lock=held) as tx:
        tx.state(well.state.globals).set("k", 1)


def is_grant(unit: Unit, outcome: Outcome) -> bool:
    return isinstance(unit, Acquire) and isinstance(outcome, Written)


def test_a_release_whose_reply_was_lost_has_freed_the_lock_or_lets_it_end(well: Stepwell, clock: FakeClock) -> None:
    """T25: the caller is told that it cannot be known; in no case is the lock taken for longer than its lease."""
    lock = well.lock("door", seconds=30)
    lock.acquire()
    with armed(at("store.committed", 1, fail)), pytest.raises(CommitUnknown):
        lock.release()
    well.lock("door").acquire()

    window, other = (well.lock(name, seconds=30) for name in ("window", "other"))
    window.acquire()
    other.acquire()
    with armed(at(points_before_the_commit(other.release)[-1], 1, fail)), pytest.raises(OSError, match="lost"):
        window.release()
    with pytest.raises(LockHeld):
        well.lock("window").acquire()
    clock.advance(30.1)
    well.lock("window").acquire()


LOST_RELEASES: dict[str, type[StepwellError]] = {"away": StoreUnavailable, "unknown": CommitUnknown}


@pytest.mark.parametrize("kind", LOST_RELEASES.values(), ids=LOST_RELEASES)
def test_a_block_whose_lock_cannot_be_given_back_is_done_all_the_same(
    well: Stepwell, clock: FakeClock, kind: type[StepwellError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T25: a turn that was saved is not reported as failed, to be sent again; the lock ends by itself."""
    write = store_under(well).write

    def write_or_fail(units: list[Unit]) -> list[Outcome]:
        if any(isinstance(unit, Unlock) for unit in units):
            raise kind
        return write(units)

    with monkeypatch.context() as broken:
        broken.setattr(store_under(well), "write", write_or_fail)
        result = well.conversations.turn("c", lambda state, message: Answer("saved"))
        with pytest.raises(ZeroDivisionError), well.lock("door"):
            raise ZeroDivisionError
    assert [turn.reply for turn in well.conversations.history("c")] == [result.reply] == ["saved"]
    assert caplog.text.count("could not be given back, so it ends by itself") == 2
    assert parts_of(well).lock_renewal.count == 0
    clock.advance(30.1)
    with well.lock("door"), well.conversations.lock("c"):
        pass


def test_a_late_acquire_of_a_holder_that_gave_up_is_an_orphan_and_no_more(well: Stepwell, clock: FakeClock) -> None:
    """T25: a request that lay in the network lands after its sender has gone; another holder's lock is not touched by it."""
    lost = Acquire("user/door", "gone", 30)
    held = well.lock("door", seconds=60)
    held.acquire()
    assert not isinstance(write_unit(well, lost), Written)
    assert held.release() is True
    outcome = write_unit(well, lost)
    assert isinstance(outcome, Written)
    [lease] = outcome.answers
    assert isinstance(lease, Lease)
    again = write_unit(well, lost)
    assert isinstance(again, Written)
    assert [each.fence for each in again.answers] == [lease.fence]  # type: ignore[attr-defined]
    clock.advance(30.1)
    assert not isinstance(write_unit(well, Unlock(lease.name, lease.holder, lease.fence)), Written)
    well.lock("door").acquire()
