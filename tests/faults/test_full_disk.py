"""T10: a full disk: writes are refused with a typed error, reads are served, and all goes on by itself once there is room."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest
from tests.faults.system_calls import DISK_FULL, SystemCalls

from stepwell import Status, Stepwell, StoreFull, step, workflow
from stepwell.model.commit import ClaimDue, Extension, Outcome, Renew, Unit
from stepwell.model.queue_item import ClaimItems
from stepwell.testing.store_access import store_under

begun, may_end = threading.Event(), threading.Event()


@step
def careful(number: int) -> int:
    begun.set()
    assert may_end.wait(60)
    return number + 1


@step
def last(number: int) -> int:
    return number * 2


@workflow
def double(number: int) -> int:
    return last(number)


@workflow
def chore(number: int) -> int:
    return last(careful(number))


@pytest.fixture
def disk() -> Iterator[SystemCalls]:
    begun.clear()
    may_end.clear()
    calls = SystemCalls()
    yield calls
    calls.restore()


def fill(disk: SystemCalls) -> None:
    disk.fail("pwrite64", 1, DISK_FULL, is_persistent=True)


def test_reads_are_served_and_writes_refused_until_there_is_room(disk: SystemCalls, tmp_path: Path) -> None:
    with Stepwell(f"sqlite:///{tmp_path}/well.db") as well:
        well.create("run", context={"kept": True})
        well.state.globals.set("k", 1)
        fill(disk)
        for write in (
            lambda: well.create("other"),
            lambda: well.transaction("run").commit(),
            lambda: well.state.globals.set("k", 2),
            lambda: well.lock("door").acquire(),
            lambda: well.delete("run"),
        ):
            with pytest.raises(StoreFull, match="free some space and try again") as caught:
                write()
            assert caught.value.code == "SW-301"
            assert well.load("run").context == {"kept": True}
            assert well.state.globals.get("k") == 1
        health = well.health()
        assert not health.is_ok
        assert health.parts["read"] == "ok"
        assert "the disk is full" in health.parts["write"]
        disk.heal()
        while not well.health().is_ok:
            pass  # until each task of the worker has tried again
        well.create("other")
        well.state.globals.set("k", 2)
        assert well.lock("door").acquire().fence > 0
        assert well.verify("run").ok
    assert apsw.Connection(f"{tmp_path}/well.db").execute("PRAGMA integrity_check").get == "ok"


def test_a_run_waits_for_room_and_goes_on_without_a_restart(disk: SystemCalls, tmp_path: Path) -> None:
    """The worker neither fails the run nor dies; other runs can be read meanwhile."""
    with Stepwell(f"sqlite:///{tmp_path}/well.db", lease_seconds=2) as well:
        run = well.start(chore, 20)
        assert begun.wait(60)
        fill(disk)
        may_end.set()
        assert disk.hit.wait(60)
        with pytest.raises(StoreFull):
            well.start(chore, 1, execution_id="refused")
        assert run.status() in (Status.PENDING, Status.RUNNING)
        disk.heal()
        assert run.result(timeout=60) == 42
        assert well.start(chore, 1, execution_id="refused").result(timeout=60) == 4
        assert run.verify().ok


def test_writes_that_fail_fast_wake_nobody_and_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker and its dispatcher would wake each other with each failure, and use up the processor."""
    url, tries, is_tried_often, is_full = f"sqlite:///{tmp_path}/well.db", Counter[type](), threading.Event(), True
    with Stepwell(url, worker=False) as asking, Stepwell(url) as well:
        write = store_under(well).write

        def refused(units: Sequence[Unit]) -> list[Outcome]:
            tries.update(type(unit) for unit in units)
            if min(tries[ClaimDue], tries[ClaimItems]) >= 4:
                is_tried_often.set()
            if is_full:
                raise StoreFull
            return write(units)

        monkeypatch.setattr(store_under(well), "write", refused)
        run, item = asking.start(double, 1), asking.enqueue(double, 2)
        assert is_tried_often.wait(60)
        assert max(tries[ClaimDue], tries[ClaimItems]) <= 8
        told = well.health().parts["worker"]
        assert "the dispatcher failed" in told
        assert "the claiming of executions failed" in told
        tasks = [message.partition(" failed, and tries again")[0] for message in caplog.messages]
        assert (tasks.count("the dispatcher"), tasks.count("the claiming of executions")) == (1, 1)
        is_full = False
        assert (run.result(60), item.result(60)) == (2, 4)
        while not well.health().is_ok:
            pass  # the test's own time limit ends this
    assert "the dispatcher works again, after" in caplog.text


@step
async def lasting(number: int) -> int:
    await asyncio.sleep(3)
    return number


@workflow
async def lasts(number: int) -> int:
    return await lasting(number)


def test_renewals_that_fail_are_logged_once_for_all_leases_and_once_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, is_full = Counter[type](), False
    with Stepwell(f"sqlite:///{tmp_path}/well.db", lease_seconds=2) as well:
        write = store_under(well).write

        def refused(units: Sequence[Unit]) -> list[Outcome]:
            tries.update(type(unit) for unit in units)
            if is_full and any(isinstance(unit, Extension | Renew) for unit in units):  # beside a commit, too: one would end a row
                raise StoreFull
            return write(units)

        monkeypatch.setattr(store_under(well), "write", refused)
        runs = [well.start(lasts, number) for number in range(20)]
        with well.lock("door", seconds=2):
            is_full = True
            tries.clear()
            while tries[Renew] < 5 or tries[Extension] < 40:
                pass  # until each was tried again, which the test's own time limit ends
            is_full = False
        assert [run.result(60) for run in runs] == list(range(20))
    told = [message.partition(",")[0] for message in caplog.messages if "renew" in message]
    assert [told.count("the renewal of leases failed"), told.count("lock 'door' could not be renewed")] == [1, 1]
