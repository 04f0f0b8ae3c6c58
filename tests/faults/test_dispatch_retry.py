"""Between the retry of an item's run and its end: whatever dies, gets lost or comes too early, the run goes on once (T28, T35)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.faults.retry_worker import ITEMS, is_turn
from tests.support.module_state import cleared
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of

from stepwell import CommitUnknown, Conflict, ItemStatus, LimitExceeded, Status, Stepwell, StoreUnavailable, step, workflow
from stepwell.model.commit import Commit, Lease, Outcome, Unit
from stepwell.model.ids import new_id
from stepwell.model.queue_item import ClaimItems
from stepwell.queue.local_engine import Resuming
from stepwell.testing.store_access import parts_of, run_operation, store_under, write_unit_or_raise

WAIT = 60
POINTS = ["after the claim", "before the turn", "after the turn", "in the step"]
calls: Counter[str] = Counter()
busy: Counter[str] = Counter()
is_broken = threading.Event()
_lock = threading.Lock()


_cleared = cleared(calls, busy, set_before=(is_broken,))


def run_program(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.faults.retry_worker", url, str(folder)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("store", SHARED_STORES)
@pytest.mark.parametrize("point", POINTS)
def test_retried_runs_of_a_killed_process_go_on_once_and_keep_no_slot(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, point: str
):
    """T28, T35: a claim that is lost comes back, and a run that has its turn is taken over."""
    url = url_of(store, request)
    (tmp_path / "broken").touch()
    (tmp_path / "die").write_text(point)
    first = run_program(url, tmp_path)
    assert first.returncode == -9, first.stderr
    second = run_program(url, tmp_path)
    assert (second.returncode, second.stdout.strip()) == (0, str(["COMPLETED"] * ITEMS)), second.stderr
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    assert {effects[f"charge {number}"] for number in range(ITEMS)} == {1}  # what was recorded is not made again
    again = [effects[f"ship {number}"] for number in range(ITEMS)]
    assert min(again) == 1
    assert sum(again) <= ITEMS + (3 if point == "in the step" else 0)  # what was under way in the three slots may be done again
    with Stepwell(url, worker=False) as well:
        assert all(lane.running == 0 for lane in well.queue.stats())
        for item in well.queue.list():
            assert well.run(item.execution_id).status() == Status.COMPLETED
            assert well.verify(item.execution_id).ok


@step(name="race.charge")
def charge(name: str) -> None:
    calls[f"charge {name}"] += 1


@step(name="race.ship")
def ship(name: str) -> str:
    with _lock:
        busy["now"] += 1
        busy["most"] = max(busy["most"], busy["now"])
        calls[f"ship {name}"] += 1
    try:
        if is_broken.is_set():
            raise RuntimeError("no lorry")
        return name
    finally:
        with _lock:
            busy["now"] -= 1


@workflow(name="race.order")
def order(name: str) -> str:
    charge(name)
    return ship(name)


def failed(well: Stepwell, name: str) -> Any:
    item = well.enqueue(order, name, workspace="acme")
    while item.state().status != ItemStatus.FAILED:
        pass
    return item


@contextmanager
def opened(url: str, number: int = 1) -> Iterator[list[Stepwell]]:
    with ExitStack() as stack:
        wells = [stack.enter_context(Stepwell(url, lease_seconds=15)) for _ in range(number)]
        wells[0].workspaces.put("acme", tier="free")
        yield wells


class Faulty:
    """Stands before a store's ``write``, and fails once at a group with a certain unit: before it landed, or after."""

    def __init__(self, well: Stepwell, monkeypatch: pytest.MonkeyPatch, is_it: Callable[[Unit], bool], error: Exception) -> None:
        self._write, self._is_it, self._error, self.failures = store_under(well).write, is_it, error, 0
        monkeypatch.setattr(store_under(well), "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        if self.failures or not any(map(self._is_it, units)):
            return self._write(units)
        self.failures += 1
        if isinstance(self._error, CommitUnknown):
            self._write(units)
        raise self._error


def is_retry(unit: Unit) -> bool:
    return isinstance(unit, Commit) and unit.mark is not None and unit.mark.status == "QUEUED"


@pytest.mark.parametrize("store", SHARED_STORES)
@pytest.mark.parametrize("is_it", [is_retry, is_turn])
@pytest.mark.parametrize("error", [CommitUnknown("the reply was lost"), StoreUnavailable("away")], ids=["unknown", "unavailable"])
def test_retried_run_goes_on_once_though_its_store_did_not_answer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str, is_it: Callable[[Unit], bool], error: Exception
):
    """T03, T28."""
    with opened(url_of(store, request)) as [well]:
        item = failed(well, "a")
        is_broken.clear()
        faulty = Faulty(well, monkeypatch, is_it, error)
        with suppress(CommitUnknown, StoreUnavailable):
            item.run().retry()
        with suppress(Conflict):  # it has landed
            if is_it is is_retry:
                item.run().retry()
        while item.state().finished_at is None:
            with suppress(CommitUnknown, StoreUnavailable):  # written in one group with what failed
                well.queue.recover()
        assert item.result(WAIT) == "a"
        assert (faulty.failures, item.state().status) == (1, ItemStatus.COMPLETED)
        assert calls == {"charge a": 1, "ship a": 2}
        assert all(lane.running == 0 for lane in well.queue.stats())


@pytest.mark.parametrize("store", SHARED_STORES)
def test_the_cap_holds_while_many_retry_and_signals_wake_whoever_waits(request: pytest.FixtureRequest, store: str):
    """I7, T27: three processes, as it were; a run that is woken at the moment of its turn is run by one of them."""
    names = "abcdef"
    with opened(url_of(store, request), 3) as wells, ThreadPoolExecutor(3) as threads:
        items = [failed(wells[0], name) for name in names]
        is_broken.clear()
        is_over = threading.Event()

        def disturb(well: Stepwell) -> None:
            while not is_over.is_set():
                for item in items:
                    with suppress(Conflict, LimitExceeded):  # it has ended; or its inbox is full
                        well.run(item.execution_id).signal("hello")

        disturbing = [threads.submit(disturb, well) for well in wells]
        for item in items:
            item.run().retry()
        assert [item.result(WAIT) for item in items] == list(names)
        is_over.set()
        for each in disturbing:
            each.result(WAIT)
        assert busy["most"] == 1
        assert calls == {f"{what} {name}": times for name in names for what, times in (("charge", 1), ("ship", 2))}
        assert {item.state().status for item in items} == {ItemStatus.COMPLETED}
        assert all(lane.running == 0 for lane in wells[0].queue.stats())


@pytest.mark.parametrize("store", SHARED_STORES)
def test_worker_that_was_woken_too_early_does_not_run_what_has_its_turn_by_now(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str
):
    """Its claim landed before the turn, and it looks after: the run is due for another, and would be run by both."""
    with opened(url_of(store, request)) as [well], Stepwell(url_of(store, request), worker=False) as other:
        item = failed(well, "a")
        is_broken.clear()
        well.queue.pause()  # whatever comes to a turn here is given it by the other one
        item.run().retry()
        write, leases = store_under(well).write, list[Lease]()

        def write_slowly(units: Any) -> list[Outcome]:
            outcomes = write(units)
            found = [each for outcome in outcomes for each in getattr(outcome, "answers", ()) if isinstance(each, Lease)]
            if found and not leases:
                other.queue.resume()
                claimed: Any = write_unit_or_raise(other, ClaimItems("other", WAIT, 1))
                assert run_operation(
                    other, Resuming(parts_of(other).executions, new_id, parts_of(other).definitions).resume(claimed.answers[0])
                )
            leases.extend(found)
            return outcomes

        monkeypatch.setattr(store_under(well), "write", write_slowly)
        item.run().signal("hello")
        assert item.result(WAIT) == "a"
        assert (len(leases), calls) == (2, {"charge a": 1, "ship a": 2})


@pytest.mark.parametrize("store", SHARED_STORES)
def test_one_end_wins_when_retried_runs_are_cancelled_at_their_turn(request: pytest.FixtureRequest, store: str):
    """T40: whichever it was, the item and its run say the same, and no slot is left."""
    with opened(url_of(store, request), 2) as wells:
        items = [failed(wells[0], str(number)) for number in range(12)]
        is_broken.clear()
        for item in items:
            item.run().retry()

        def cancel(number: int) -> None:
            with suppress(Conflict):  # it had ended
                wells[number % 2].queue.item(items[number].item_id).cancel()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(cancel, range(12)))
        for item in items:
            while (state := item.state()).status not in (ItemStatus.COMPLETED, ItemStatus.CANCELLED):
                pass
            assert str(item.run().status()) == str(state.status)
        assert {calls[f"charge {number}"] for number in range(12)} == {1}
        assert all(lane.running == 0 for lane in wells[0].queue.stats())
