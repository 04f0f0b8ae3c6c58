"""T06: a writer that was paused past its lease is refused, because another one holds a higher fence."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.children import Child
from tests.faults.hooks import at
from tests.faults.leases import LEASE_SECONDS, claim

from stepwell import FakeClock, LeaseLost, LockHeld, Stepwell, SystemClock
from stepwell.fault_points import armed

_PAUSES = 8
_FAST_PAUSES = {"memory": 500, "sqlite": 250}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def well(store: str, clock: FakeClock, tmp_path: Path) -> Iterator[Stepwell]:
    with Stepwell("memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db", clock=clock) as well:
        yield well


def take_over(well: Stepwell, execution_id: str, old_fence: int) -> None:
    """Claim, with a higher fence, and commit."""
    lease = claim(well, execution_id, "successor")
    assert lease.fence > old_fence
    with well.transaction(execution_id, fence=lease.fence) as tx:
        tx.set_variable("written_by", "successor")


@pytest.mark.parametrize("point", ["commit.validated", "store.before_begin"])
def test_a_process_stopped_past_its_lease_cannot_commit_when_it_goes_on(point: str, tmp_path: Path) -> None:
    """T06: real processes and SIGSTOP, between validation and BEGIN; the late write is refused in the transaction."""
    url, later = f"sqlite:///{tmp_path}/well.db", FakeClock(SystemClock().now())
    later.advance(2 * LEASE_SECONDS)
    with Stepwell(url) as now, Stepwell(url, clock=later) as successor, Child("paused_writer", url, point) as sleeper:
        for number in range(_PAUSES):
            execution_id = f"run-{number}"
            now.create(execution_id)
            sleeper.tell(execution_id)
            sleeper.wait_until_stopped()
            with pytest.raises(LockHeld):
                claim(now, execution_id, "too early")
            take_over(successor, execution_id, old_fence=1)
            sleeper.signal(signal.SIGCONT)
            assert sleeper.hear() == "refused"
            assert now.load(execution_id).variables == {"written_by": "successor"}
            assert now.verify(execution_id).receipts == 2


def test_a_writer_paused_past_its_lease_never_overwrites_its_successor(store: str, well: Stepwell, clock: FakeClock) -> None:
    """T06: 0 stale accepts in 500 pauses, with a fake clock."""
    for number in range(_FAST_PAUSES[store]):
        execution_id = f"run-{number}"
        well.create(execution_id)
        fence = claim(well, execution_id, "sleeper").fence
        late = well.transaction(execution_id, fence=fence).begin()
        late.set_variable("written_by", "sleeper")

        def pause(execution_id: str = execution_id, fence: int = fence) -> None:
            clock.advance(LEASE_SECONDS + 1)
            take_over(well, execution_id, fence)

        with armed(at("commit.validated", 1, pause)), pytest.raises(LeaseLost):
            late.commit()
        assert well.load(execution_id).variables == {"written_by": "successor"}
        assert well.verify(execution_id).receipts == 2


def test_a_fence_is_compared_even_if_the_revision_did_not_move(store: str, well: Stepwell, clock: FakeClock) -> None:
    """T06: the successor has only claimed, not committed; the late write is refused all the same."""
    well.create("run")
    fence = claim(well, "run", "sleeper").fence
    late = well.transaction("run", fence=fence).begin()
    late.set_variable("written_by", "sleeper")
    clock.advance(LEASE_SECONDS + 1)
    claim(well, "run", "successor")
    with pytest.raises(LeaseLost):
        late.commit()
    assert well.load("run").variables == {}


def test_a_lease_that_nobody_took_over_still_commits_after_its_end(store: str, well: Stepwell, clock: FakeClock) -> None:
    """T06: safety comes from the fence, not from the clock."""
    well.create("run")
    fence = claim(well, "run", "slow").fence
    clock.advance(10 * LEASE_SECONDS)
    with well.transaction("run", fence=fence) as tx:
        tx.set_variable("written_by", "slow")
    assert well.load("run").variables == {"written_by": "slow"}


def test_accepted_fences_never_decrease(store: str, well: Stepwell, clock: FakeClock) -> None:
    """T06, I8: whoever has an older fence than the newest claim is refused, in any order of claims and commits."""
    well.create("run")
    fences: list[int] = []
    accepted: list[int] = []
    for number in range(30):
        fences.append(claim(well, "run", f"holder-{number}").fence)
        clock.advance(LEASE_SECONDS + 1)
        for fence in (fences[-1], fences[number // 2], fences[-1]):
            if commits(well, fence):
                accepted.append(fence)
    assert fences == sorted(set(fences))
    assert accepted == sorted(accepted)
    assert set(accepted) == set(fences)


def commits(well: Stepwell, fence: int) -> bool:
    try:
        with well.transaction("run", fence=fence) as tx:
            tx.increment_step_count()
    except LeaseLost:
        return False
    return True
