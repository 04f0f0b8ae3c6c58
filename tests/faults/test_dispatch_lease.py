"""Items and the leases of those who have them: who takes over from whom, when, and that nobody else does (T31 to T33)."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import Child
from tests.faults.worker_program import held, left, many, stuck
from tests.support.queue_urls import shared_url

from stepwell import ItemStatus, Stepwell
from stepwell.model.commit import StateBatch
from stepwell.model.queue_item import ClaimItems
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import Clear
from stepwell.testing.store_access import store_under, write_unit_or_raise

__all__ = ["shared_url"]

WAIT = 60
LEASE = 1.0
LONG = 600.0


def worker(url: str, lease_seconds: float = LEASE) -> Child:
    """A worker that is ready."""
    child = Child("worker_program", url, lease_seconds)
    assert child.hear() == "ready"
    return child


def wait_until(is_so: Callable[[], bool]) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)


def claim_as_dead(well: Stepwell, number: int, seconds: float) -> None:
    """Claim items as somebody who never comes back."""
    outcome: Any = write_unit_or_raise(well, ClaimItems("dead", seconds, number))
    assert len(outcome.answers) == number


def test_recoveries_that_see_the_same_dead_items_return_each_once(shared_url: str) -> None:
    """T31: eight sweep at once, without the lock that lets one of them; only the one whose update hits a row has it."""
    with ExitStack() as stack:
        wells = [stack.enter_context(Stepwell(shared_url, worker=False)) for _ in range(8)]
        items = [wells[0].enqueue(many, ["", str(number)]) for number in range(100)]
        claim_as_dead(wells[0], 100, 0.001)
        start = threading.Barrier(8)

        def recover(well: Stepwell) -> list[str]:
            start.wait()
            found: list[str] = []
            while any(lane.claimed for lane in store_under(well).lanes()):
                found += well.queue.recover()
            return found

        with ThreadPoolExecutor(8) as threads:
            returned = Counter(item_id for found in threads.map(recover, wells) for item_id in found)
        assert returned == {item.item_id: 1 for item in items}
        assert {(state.status, state.attempts) for state in (item.state() for item in items)} == {(ItemStatus.QUEUED, 1)}


def test_dead_dispatchers_items_are_each_run_by_one_of_many(shared_url: str, tmp_path: Path) -> None:
    """T31: processes that start up together and sweep; each body runs once.

    Few items: an item that is claimed again may be a poison, so each process runs only one of these at a time.
    """
    names = [f"m{number}" for number in range(12)]
    with Stepwell(shared_url, worker=False) as well:
        items = [well.enqueue(many, [str(tmp_path), name]) for name in names]
        claim_as_dead(well, len(names), 0.001)
        # Their own leases are long: one that a busy machine stops for a second is not dead.
        with worker(shared_url, LONG), worker(shared_url, LONG), Stepwell(shared_url, lease_seconds=LONG):
            assert [item.result(WAIT) for item in items] == names
        assert {item.state().attempts for item in items} == {2}
    assert Counter(left(tmp_path)) == {f"noted {name}": 1 for name in names}


def test_item_whose_worker_renews_is_never_rescued_however_long_its_step_takes(shared_url: str, tmp_path: Path) -> None:
    """T32, T31: a step of many leases, while others sweep and one more starts up in the middle of it.

    Should the machine stop the worker for longer than its lease, another may have it; but then the lease was over.
    """
    with Stepwell(shared_url, worker=False) as well, worker(shared_url) as first:
        item = well.enqueue(held, str(tmp_path))
        assert first.hear() == "entered"
        leases, ends, recovered = list[tuple[str, int]](), dict[str, set[int]](), list[str]()
        with worker(shared_url) as second:
            while max(map(len, ends.values()), default=0) < 5:  # renewed four times, which takes more than a lease
                recovered += well.queue.recover()
                for holder, until_ms in leases_of(well, item):
                    leases.append((holder, until_ms))
                    ends.setdefault(holder, set()).add(until_ms)
                threading.Event().wait(0.02)
            (tmp_path / "release").touch()
            assert item.result(WAIT) in (first.pid, second.pid)
    for (last, was_until_ms), (heir, until_ms) in itertools.pairwise(leases):
        assert heir == last or until_ms - 1000 * LEASE >= was_until_ms
    if len(ends) == 1:
        assert (recovered, len(left(tmp_path, "entered"))) == ([], 1)


def leases_of(well: Any, item: Any) -> list[tuple[str, int]]:
    """Return the holder of an item and the end of its lease: its own before the first commit, the execution's afterwards."""
    stored = store_under(well).item(item.item_id)
    leased = store_under(well).head(item.execution_id) if stored.status == ItemStatus.DISPATCHED else stored
    return [(leased.holder, leased.lease_until_ms)] if leased is not None and leased.holder is not None else []


@pytest.mark.parametrize("is_made", [False, True], ids=["claimed", "dispatched"])
def test_worker_stopped_past_its_lease_wakes_up_and_writes_nothing(shared_url: str, tmp_path: Path, is_made: bool) -> None:
    """T32: with no commit made yet the item's fence refuses it, afterwards the execution's; its successor's result counts."""
    with Stepwell(shared_url, worker=False) as well, worker(shared_url) as first:
        item = well.enqueue(held, str(tmp_path))
        assert first.hear() == "entered"
        if is_made:
            wait_until(lambda: item.state().status is ItemStatus.DISPATCHED)
        first.pause(shared_url)
        with worker(shared_url) as second:
            assert second.hear() == "entered"
            (tmp_path / "release").touch()
            assert item.result(WAIT) == second.pid
            revision = well.load(item.execution_id).revision
            first.signal(signal.SIGCONT)
            assert well.enqueue(many, [str(tmp_path), "later"]).result(WAIT) == "later"
        assert well.load(item.execution_id).revision == revision
        assert item.state().status is ItemStatus.COMPLETED
        assert well.verify(item.execution_id).ok
        assert all(lane.running == 0 for lane in well.queue.stats())


def test_worker_whose_loop_is_stuck_past_its_lease_loses_its_item(shared_url: str, tmp_path: Path) -> None:
    """T32: nothing can be renewed by a loop that a step holds; the late result is refused."""
    with Stepwell(shared_url, worker=False) as well, worker(shared_url) as first:
        item = well.enqueue(stuck, str(tmp_path))
        assert first.hear() == "entered"
        with worker(shared_url) as second:
            assert second.hear() == "entered"
            first.pause(shared_url)
            (tmp_path / "release").touch()
            assert item.result(WAIT) == second.pid
            first.signal(signal.SIGCONT)
            assert well.enqueue(many, [str(tmp_path), "later"]).result(WAIT) == "later"
        assert item.result(WAIT) == second.pid
        assert well.verify(item.execution_id).ok


@pytest.mark.parametrize("is_made", [False, True], ids=["claimed", "dispatched"])
def test_orphan_of_a_worker_that_restarts_at_once_is_found_when_its_lease_is_over(
    shared_url: str, tmp_path: Path, is_made: bool
) -> None:
    """T33: the same program on the same host is somebody else; and word of the dead one may be gone before its items are."""
    with Stepwell(shared_url, worker=False) as well:
        item = well.enqueue(held, str(tmp_path))
        with worker(shared_url) as first:
            assert first.hear() == "entered"
            if is_made:
                wait_until(lambda: item.state().status is ItemStatus.DISPATCHED)
            before = {each.name for each in well.queue.workers()}
            first.kill()
        write_unit_or_raise(well, StateBatch((Clear(internal_path("worker", "default")),)))
        with worker(shared_url) as second:
            assert second.hear() == "entered"
            assert not before & {each.name for each in well.queue.workers()}
            (tmp_path / "release").touch()
            assert item.result(WAIT) == second.pid
        assert item.state().attempts == (1 if is_made else 2)
        assert well.verify(item.execution_id).ok
