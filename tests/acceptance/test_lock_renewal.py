"""Renewal: a lock that is held stays held, for as long as its holder lives; a renewal that is refused is a loss, and told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support import store_urls

from stepwell import FakeClock, HeldLock, LeaseLost, LockHeld, StoreUnavailable
from stepwell.model.commit import Lease, Outcome, Renew, Unit, Written
from stepwell.state.locks import LockRenewal
from stepwell.testing.store_access import parts_of, store_under

url = store_urls.url

LONG = 60
"""Seconds that a test waits for what must happen soon; reached only if it fails."""

SOON = 0.003
"""A lease so short that it is renewed every millisecond."""


class Group:
    """Stands where the group committer does: shows each renewal to the test, and answers what the test says."""

    def __init__(self) -> None:
        self.renewals: SimpleQueue[Renew] = SimpleQueue()
        self.answer: Callable[[Renew], Outcome] = lambda unit: Written([Lease(unit.name, unit.holder, unit.fence, 0)])

    def write(self, unit: Unit) -> Outcome:
        assert isinstance(unit, Renew)
        outcome = self.answer(unit)
        self.renewals.put(unit)
        return outcome


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def renewal(group: Group) -> Iterator[LockRenewal]:
    renewal: Any = LockRenewal(group)  # type: ignore[arg-type]
    yield renewal
    renewal.close()


def hold(name: str, seconds: float = SOON, fence: int = 7) -> HeldLock:
    return HeldLock(name, Lease(name, f"holder of {name}", fence, 0), seconds)


def end_of(renewal: LockRenewal) -> None:
    """Wait until the renewal's thread has nothing to do and is gone."""
    thread = renewal._thread
    if thread is not None:
        thread.join(LONG)
        assert not thread.is_alive()


def test_a_lock_is_renewed_again_and_again_while_it_is_held(group: Group, renewal: LockRenewal) -> None:
    held = hold("door")
    renewal.add(held)
    for _ in range(5):
        assert group.renewals.get(timeout=LONG) == Renew("door", "holder of door", 7, SOON)
    assert not held.is_lost


def test_a_released_lock_is_renewed_no_more(group: Group, renewal: LockRenewal) -> None:
    held = hold("door")
    renewal.add(held)
    group.renewals.get(timeout=LONG)
    renewal.remove(held)
    end_of(renewal)
    assert renewal._due == {}


def test_every_lock_that_is_held_is_renewed(group: Group, renewal: LockRenewal) -> None:
    for name in ("a", "b", "c"):
        renewal.add(hold(name))
    missing = {"a", "b", "c"}
    while missing:
        missing.discard(group.renewals.get(timeout=LONG).name)


def test_a_lock_is_renewed_well_before_it_ends(group: Group, renewal: LockRenewal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.state.locks.monotonic", lambda: 1_000.0)
    held = hold("door", seconds=30)
    renewal.add(held)
    assert renewal._due == {held: 1_010.0}
    renewal._renew(held)
    assert renewal._due == {held: 1_010.0}


def test_a_refused_renewal_is_a_loss(group: Group, renewal: LockRenewal, caplog: pytest.LogCaptureFixture) -> None:
    """T20: the renewal comes back with nothing, and the holder can know."""
    group.answer = lambda unit: LeaseLost(fence=unit.fence)
    held = hold("door")
    with caplog.at_level(logging.WARNING):
        renewal.add(held)
        end_of(renewal)
    assert held.is_lost
    with pytest.raises(LeaseLost):
        held.check()
    assert "lock 'door' was lost while it was held" in caplog.text
    assert group.renewals.qsize() == 1


def test_a_loss_of_one_lock_does_not_touch_the_others(group: Group, renewal: LockRenewal) -> None:
    group.answer = lambda unit: LeaseLost() if unit.name == "lost" else Written([Lease(unit.name, unit.holder, unit.fence, 0)])
    lost, kept = hold("lost"), hold("kept")
    renewal.add(lost)
    renewal.add(kept)
    seen: list[str] = []
    while seen.count("kept") < 3 or "lost" not in seen:
        seen.append(group.renewals.get(timeout=LONG).name)
    assert seen.count("lost") == 1
    assert not kept.is_lost


@pytest.mark.parametrize("error", [StoreUnavailable(), OSError("the network is away"), RuntimeError("a bug")], ids=repr)
def test_a_renewal_that_fails_is_tried_again_soon(group: Group, renewal: LockRenewal, error: Exception) -> None:
    """T25: the store is away for a moment; the lock is not given up, and neither are the others."""
    failures = [error] * 3

    def answer(unit: Renew) -> Outcome:
        if failures:
            raise failures.pop()
        return Written([Lease(unit.name, unit.holder, unit.fence, 0)])

    group.answer = answer
    held = hold("door")
    renewal.add(held)
    for _ in range(2):
        group.renewals.get(timeout=LONG)
    assert failures == []
    assert not held.is_lost


def test_a_lock_released_during_its_renewal_is_renewed_no_more(group: Group, renewal: LockRenewal) -> None:
    held, inside, go_on = hold("door"), threading.Event(), threading.Event()

    def answer(unit: Renew) -> Outcome:
        inside.set()
        assert go_on.wait(LONG)
        return LeaseLost()

    group.answer = answer
    renewal.add(held)
    assert inside.wait(LONG)
    renewal.remove(held)
    go_on.set()
    end_of(renewal)
    assert not held.is_lost, "it was given back in time; that the renewal came too late is no loss"


def test_the_next_lock_starts_the_renewal_thread_again(group: Group, renewal: LockRenewal) -> None:
    for name in ("first", "second"):
        held = hold(name)
        renewal.add(held)
        while group.renewals.get(timeout=LONG).name != name:
            pass
        renewal.remove(held)
        end_of(renewal)


def watch_renewals(well: Any, monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[Outcome]:
    """The outcome of each renewal that the store decides."""
    renewals: SimpleQueue[Outcome] = SimpleQueue()
    write = store_under(well).write

    def watched(units: list[Unit]) -> list[Outcome]:
        outcomes = write(units)
        for unit, outcome in zip(units, outcomes, strict=True):
            if isinstance(unit, Renew):
                renewals.put(outcome)
        return outcomes

    monkeypatch.setattr(store_under(well), "write", watched)
    return renewals


def test_a_held_lock_outlives_its_lease(open_well: OpenWell, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the store's clock, the lease would be over; it was renewed meanwhile."""
    monkeypatch.setattr("stepwell.state.locks._RENEWALS_PER_LEASE", 300)  # of 90 seconds, which no busy machine outlasts
    well = open_well(url, clock=clock)
    renewals = watch_renewals(well, monkeypatch)
    with well.lock("door", seconds=90) as held:
        clock.advance(45)
        while not renewals.empty():
            renewals.get()
        for _ in range(2):  # the first may have been under way when the clock moved, which proves nothing
            assert isinstance(renewals.get(timeout=LONG), Written)
        clock.advance(60)
        with pytest.raises(LockHeld):
            well.lock("door").acquire()
        assert not held.is_lost


def test_a_holder_that_slept_over_its_lease_learns_of_it_from_the_renewal(
    open_well: OpenWell, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T20."""
    well = open_well(url, clock=clock)
    renewals = watch_renewals(well, monkeypatch)
    lock = well.lock("door", seconds=0.3)
    held = lock.acquire()
    clock.advance(1)
    other = well.lock("door", seconds=30)
    other.acquire()
    while not isinstance(renewals.get(timeout=LONG), LeaseLost):
        pass
    assert lock.release() is False
    assert held.is_lost
    assert other.release() is True


def test_a_lock_that_is_still_held_when_the_well_closes_is_renewed_no_more(
    open_well: OpenWell, url: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    well = open_well(url, clock=clock)
    well.lock("door", seconds=0.01).acquire()
    renewal = parts_of(well).lock_renewal
    well.close()
    end_of(renewal)
    assert renewal._due == {}
