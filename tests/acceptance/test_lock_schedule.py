"""Scheduled locks: of many nodes that start a job at the same time one runs it, and late ones find it taken."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support import store_urls

from stepwell import FakeClock, InvalidInput, LockHeld, Stepwell
from stepwell.model.commit import Renew, Unit
from stepwell.testing.store_access import parts_of, store_under

url = store_urls.url


def gets(well: Stepwell, *, at_most: float = 600, at_least: float = 0) -> bool:
    """Whether a node that starts the job now may run it; it is done in an instant."""
    try:
        with well.scheduled_lock("report", at_most=at_most, at_least=at_least):
            return True
    except LockHeld:
        return False


def test_one_node_runs_the_job_and_the_others_do_not(well: Stepwell) -> None:
    with well.scheduled_lock("report", at_most=600):
        assert not gets(well)
    assert gets(well)


def test_a_job_that_hangs_keeps_others_out_for_at_most_so_long(well: Stepwell, clock: FakeClock) -> None:
    well.scheduled_lock("report", at_most=timedelta(minutes=10)).acquire()
    clock.advance(500)  # servers have a clock of their own, which goes on meanwhile
    assert not gets(well)
    clock.advance(101)
    assert gets(well)


def test_a_job_that_is_done_in_an_instant_keeps_others_out_for_at_least_so_long(well: Stepwell, clock: FakeClock) -> None:
    """T24: by the store's clock, from when the lock was taken."""
    assert gets(well, at_least=600)
    clock.advance(500)
    assert not gets(well, at_least=600)
    clock.advance(101)
    assert gets(well, at_least=600)


def test_the_least_time_counts_from_the_start_of_the_job(well: Stepwell, clock: FakeClock) -> None:
    with well.scheduled_lock("report", at_most=900, at_least=600):
        clock.advance(400)
    clock.advance(100)
    assert not gets(well)
    clock.advance(101)
    assert gets(well)


def test_a_job_that_took_longer_than_its_least_time_leaves_the_lock_free(well: Stepwell, clock: FakeClock) -> None:
    with well.scheduled_lock("report", at_most=600, at_least=60):
        clock.advance(61)
    assert gets(well)


def test_a_failed_job_keeps_its_least_time_as_well(well: Stepwell, clock: FakeClock) -> None:
    with pytest.raises(ZeroDivisionError), well.scheduled_lock("report", at_most=600, at_least=600):
        raise ZeroDivisionError
    clock.advance(500)
    assert not gets(well)


def test_a_job_that_overran_does_not_free_the_lock_of_the_next_one(
    well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """T20."""
    first, second = (well.scheduled_lock("report", at_most=60, at_least=30) for _ in range(2))
    slow = first.acquire()
    clock.advance(61)
    present = second.acquire()
    assert present.fence > slow.fence
    assert first.release() is False
    assert "had expired before it was given back" in caplog.text
    assert not gets(well)
    assert second.release() is True


def test_a_scheduled_lock_is_not_renewed(well: Stepwell, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must end at ``at_most``, however alive its holder is."""
    units: list[Unit] = []
    write = store_under(well).write
    monkeypatch.setattr(store_under(well), "write", lambda group: units.extend(group) or write(group))
    with well.scheduled_lock("report", at_most=0.05):
        assert parts_of(well).lock_renewal.count == 0
        assert parts_of(well).lock_renewal._thread is None
    assert not [unit for unit in units if isinstance(unit, Renew)]


def test_jobs_of_different_names_do_not_meet(well: Stepwell) -> None:
    with well.scheduled_lock("report", at_most=600), well.scheduled_lock("backup", at_most=600), well.lock("report"):
        assert not gets(well)


def test_a_least_time_longer_than_the_most_is_refused(well: Stepwell) -> None:
    with pytest.raises(InvalidInput, match=r"at_least \(61 s\) is longer than at_most \(60 s\)"):
        well.scheduled_lock("report", at_most=60, at_least=61)
    with well.scheduled_lock("report", at_most=60, at_least=60):
        pass


def test_refusal_of_a_scheduled_lock_names_it_and_offers_no_timeout(well: Stepwell) -> None:
    well.scheduled_lock("nightly", at_most=60).acquire()
    with pytest.raises(LockHeld, match=r"^scheduled lock 'nightly' is held by another; another node does the job, or has done it"):
        well.scheduled_lock("nightly", at_most=60).acquire()
