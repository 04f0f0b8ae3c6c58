"""T20: a holder that is paused past its lease. Another takes the lock and writes; the first, going on, can do no harm."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.faults.children import Child
from tests.faults.hooks import at
from tests.faults.paused_lock_holder import write_under
from tests.support import store_urls

from stepwell import FakeClock, LeaseLost, LockHeld, Stepwell, SystemClock
from stepwell.fault_points import armed
from stepwell.model.commit import Renew, Written
from stepwell.testing.store_access import write_unit

url = store_urls.url

SECONDS = 30
PAUSES = 4
FAST_PAUSES = {"memory": 200, "sqlite": 200}


def state_of(well: Stepwell) -> tuple[object, object]:
    return well.state.globals.get("by"), well.load("run").variables.get("by")


@store_urls.on_shared_stores
def test_a_process_stopped_past_its_lease_can_do_no_harm(url: str) -> None:
    """T20: real processes and SIGSTOP; whoever comes later does so by a clock that is two leases ahead."""
    later = FakeClock(SystemClock().now())
    later.advance(2 * SECONDS)
    with Stepwell(url) as now, Stepwell(url, clock=later) as successor, Child("paused_lock_holder", url, SECONDS) as sleeper:
        now.create("run")
        for _ in range(PAUSES):
            sleeper.tell("go")
            sleeper.wait_until_stopped()
            with pytest.raises(LockHeld):
                now.lock("door").acquire()
            lock = successor.lock("door", seconds=10 * SECONDS)
            held = lock.acquire()
            assert write_under(successor, held, f"successor {held.fence}")
            sleeper.signal(signal.SIGCONT)
            assert sleeper.hear() == "written=False renewed=False released=False warned=True"
            assert state_of(now) == (f"successor {held.fence}",) * 2
            with pytest.raises(LockHeld):
                now.lock("door").acquire()
            assert write_under(successor, held, "still there")
            assert lock.release() is True


@pytest.fixture
def well(url: str, clock: FakeClock) -> Iterator[Stepwell]:
    with Stepwell(url, clock=clock, worker=False) as well:
        well.create("run")
        yield well


def test_a_holder_paused_past_its_lease_can_do_no_harm(well: Stepwell, url: str, clock: FakeClock) -> None:
    """T20: 0 stale accepts, with a fake clock; before, between and after the successor's own writes."""
    accepted: list[int] = []
    pauses = FAST_PAUSES.get(url.partition(":")[0], 40)
    for number in range(pauses):
        slept, present = well.lock("door", seconds=SECONDS), well.lock("door", seconds=SECONDS)
        old = slept.acquire()
        clock.advance(2 * SECONDS)
        new = present.acquire()
        assert new.fence > old.fence
        if number % 2:
            accepted += [new.fence] * write_under(well, new, f"new {number}")
        assert not write_under(well, old, "late")
        assert not isinstance(write_unit(well, Renew(old.name, old.holder, old.fence, SECONDS)), Written)
        assert slept.release() is False
        accepted += [new.fence] * write_under(well, new, f"new {number}")
        assert state_of(well) == (f"new {number}",) * 2
        with pytest.raises(LockHeld):
            well.lock("door").acquire()
        assert present.release() is True
    assert accepted == sorted(accepted)
    assert len(accepted) == pauses + pauses // 2


def test_a_holder_paused_in_the_middle_of_its_commit_is_refused_there(well: Stepwell, clock: FakeClock) -> None:
    """T06, T20: validated and on its way to the store when the lock changes hands: the store compares, not the writer."""
    for _ in range(20):
        old = well.lock("door", seconds=SECONDS).acquire()
        late = well.transaction("run", lock=old).begin()
        late.set_variable("by", "late")

        def pause() -> None:
            clock.advance(2 * SECONDS)
            well.lock("door", seconds=SECONDS).acquire()

        with armed(at("commit.validated", 1, pause)), pytest.raises(LeaseLost):
            late.commit()
        assert well.load("run").revision == 0
        clock.advance(2 * SECONDS)
