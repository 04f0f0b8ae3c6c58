"""Retrying a run that came from the queue: it waits for its turn there, goes on from its record, and ends its item anew."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.queue_urls import queue_url, shared_url

import stepwell
from stepwell import Conflict, ExecutionCancelled, ExecutionFailed, ItemStatus, NotFound, Status, Stepwell, step, workflow
from stepwell.flow import call, define, signal
from stepwell.model.commit import Deletion
from stepwell.model.queue_item import ItemMark
from stepwell.testing.store_access import write_unit_or_raise

__all__ = ["queue_url", "shared_url"]

WAIT = 60
calls: Counter[str] = Counter()
is_broken = threading.Event()
gate = threading.Event()
entered = threading.Semaphore(0)
_lock = threading.Lock()
busy: Counter[str] = Counter()
"""How many steps are being made now, and the most that ever were."""


_cleared = cleared(calls, busy, gate, entered, set_before=(is_broken,))


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Any:
    """A well that works, with a workspace of one slot."""
    well = open_well(queue_url)
    well.workspaces.put("acme", tier="free")
    return well


@contextmanager
def counted(name: str) -> Iterator[None]:
    calls[name] += 1
    with _lock:
        busy["now"] += 1
        busy["most"] = max(busy["most"], busy["now"])
    try:
        yield
    finally:
        with _lock:
            busy["now"] -= 1


@step(name="retried.charge")
def charge(name: str) -> str:
    with counted(f"charge {name}"):
        return name


@step(name="retried.ship")
def ship(name: str) -> str:
    with counted(f"ship {name}"):
        if is_broken.is_set():
            raise RuntimeError("no lorry")
        return f"{name} is on its way"


@step(name="retried.hold")
def hold(name: str) -> str:
    with counted(name):
        entered.release()
        assert gate.wait(WAIT)
        return name


@workflow(name="retried.order")
def order(name: str) -> str:
    charge(name)
    return ship(name)


@workflow(name="retried.holding")
def holding(name: str) -> str:
    return hold(name)


@workflow(name="retried.told")
async def told(name: str) -> Any:
    await charge(name)
    await ship(name)
    return await stepwell.wait_signal("go")


@workflow(name="retried.part")
def part(name: str) -> str:
    return ship(name)


@workflow(name="retried.whole")
async def whole(name: str) -> str:
    await charge(name)
    return await part(name)


def failed(well: Any, function: Any = order, name: str = "a", **options: Any) -> Any:
    """The item of a run that failed."""
    item = well.enqueue(function, name, workspace="acme", **options)
    with pytest.raises(ExecutionFailed, match="no lorry"):
        item.result(WAIT)
    return item


@contextmanager
def full(well: Any) -> Iterator[None]:
    """The only slot is taken while this lasts; then whoever waits has his turn."""
    other = well.enqueue(holding, "other", workspace="acme")
    assert entered.acquire(timeout=WAIT)
    try:
        yield
    finally:
        gate.set()
    assert other.result(WAIT) == "other"


def waits(well: Any, item: Any) -> bool:
    """Whether both an item and its run wait for their turn."""
    return (item.state().status, item.refresh().status, item.run().status()) == (ItemStatus.QUEUED, "QUEUED", Status.PENDING)


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        pass


def used(well: Any) -> int:
    return sum(lane.running for lane in well.queue.stats())


def test_a_retried_run_waits_for_its_turn_and_goes_on_from_its_record(well: Any):
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        assert waits(well, item)
        state = item.state()
        assert (state.attempts, state.error, state.finished_at) == (0, None, None)
        assert item.why().codes == ("at_capacity",)
        with pytest.raises(TimeoutError, match="is still QUEUED"):
            item.result(0)
    assert item.result(WAIT) == item.run().result(WAIT) == "a is on its way"
    state = item.state()
    assert (state.status, state.attempts, state.error) == (ItemStatus.COMPLETED, 1, None)
    assert calls == {"charge a": 1, "ship a": 2, "other": 1}
    assert (busy["most"], used(well)) == (1, 0)
    assert item.run().verify().ok


def test_the_cap_holds_while_retried_runs_and_others_compete(well: Any):
    items = [failed(well, name=name) for name in "abc"]
    is_broken.clear()
    with full(well):
        others = [well.enqueue(order, name, workspace="acme") for name in "xyz"]
        for item in items:
            item.run().retry()
    for item, name in zip((*items, *others), "abcxyz", strict=True):
        assert item.result(WAIT) == f"{name} is on its way"
        assert item.state().status == ItemStatus.COMPLETED
    assert (busy["most"], used(well)) == (1, 0)
    assert {calls[f"charge {name}"] for name in "abcxyz"} == {1}


def test_a_run_can_be_retried_as_often_as_it_fails(well: Any):
    item = failed(well)
    for number in (2, 3):
        item.run().retry()
        with pytest.raises(ExecutionFailed, match="no lorry"):
            item.result(WAIT)
        state = item.state()
        assert (state.status, "no lorry" in state.error, calls["ship a"]) == (ItemStatus.FAILED, True, number)
    is_broken.clear()
    item.run().retry()
    assert item.result(WAIT) == "a is on its way"
    assert item.state().status == ItemStatus.COMPLETED
    assert calls == {"charge a": 1, "ship a": 4}


def test_a_run_that_waits_for_its_turn_is_not_retried_once_more_nor_driven_again(well: Any):
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        with pytest.raises(Conflict, match="QUEUED"):
            item.run().retry()
        with pytest.raises(Conflict, match="QUEUED"):
            well.queue.redrive(item.item_id)
        assert waits(well, item)
    assert item.result(WAIT) == "a is on its way"
    assert calls["ship a"] == 2


def test_a_signal_does_not_start_a_run_before_its_turn_and_is_heard_then(well: Any):
    item = failed(well, told)
    is_broken.clear()
    with full(well):
        run = item.run()
        run.retry()
        before = len(run.receipts())
        run.signal("go", "now")
        until(lambda: len(run.receipts()) > before)  # a worker has looked at it, and put it back
        assert waits(well, item)
        assert calls["ship a"] == 1
    assert item.result(WAIT) == "now"
    assert (calls["charge a"], busy["most"], used(well)) == (1, 1, 0)


@pytest.mark.parametrize("by", ["item", "run"])
def test_a_run_that_is_cancelled_while_it_waits_for_its_turn_ends_with_its_item(well: Any, by: str):
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        if by == "item":
            assert item.cancel().status == ItemStatus.CANCELLED
        else:
            item.run().cancel()
            until(lambda: item.run().status() == Status.CANCELLED)
        assert (item.run().status(), item.state().status) == (Status.CANCELLED, ItemStatus.CANCELLED)
        for handle in (item, item.run()):
            with pytest.raises(ExecutionCancelled):
                handle.result(WAIT)
        assert (calls["ship a"], used(well)) == (1, 1)
    assert well.enqueue(order, "b", workspace="acme").result(WAIT) == "b is on its way"
    assert (calls["ship a"], used(well)) == (1, 0)
    assert item.run().verify().ok


def test_an_item_is_cancelled_with_its_run_while_nobody_works(open_well: OpenWell, shared_url: str):
    well = open_well(shared_url)
    well.workspaces.put("acme", tier="free")
    item = failed(well)
    well.close()
    idle = open_well(shared_url, worker=False)
    item = idle.queue.item(item.item_id)
    item.run().retry()
    assert waits(idle, item)
    assert item.cancel().status == ItemStatus.CANCELLED
    assert item.run().status() == Status.CANCELLED


def test_a_run_that_is_deleted_while_it_waits_for_its_turn_cancels_its_item(well: Any):
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        well.delete(item.execution_id)
        assert item.state().status == ItemStatus.CANCELLED
        with pytest.raises(NotFound):
            item.run().status()
    assert well.enqueue(order, "b", workspace="acme").result(WAIT) == "b is on its way"
    assert (calls["charge a"], calls["ship a"], used(well)) == (1, 1, 0)


def unchanged(item: Any) -> None:
    assert item.run().status() == Status.FAILED
    assert item.run().verify().ok
    with pytest.raises(ExecutionFailed, match="no lorry"):
        item.run().result(WAIT)


def test_a_run_whose_item_was_driven_again_is_not_retried(well: Any):
    item = failed(well)
    with full(well):
        again = well.queue.redrive(item.item_id)
        with pytest.raises(Conflict, match=again.execution_id):
            item.run().retry()
        unchanged(item)
        is_broken.clear()
    assert again.result(WAIT) == "a is on its way"
    with pytest.raises(Conflict, match=again.execution_id):
        item.run().retry()
    assert calls == {"charge a": 2, "ship a": 2, "other": 1}


def test_a_run_whose_item_was_dropped_is_not_retried(well: Any):
    item = failed(well)
    well.workspaces.put_tier("brief", retention_seconds=0)
    well.workspaces.put("acme", tier="brief")
    until(lambda: well.retention.apply() is not None and not well.queue.list(workspace="acme"))
    with pytest.raises(Conflict, match="enqueue the work anew"):
        item.run().retry()
    unchanged(item)


def test_a_run_is_not_retried_beside_another_item_of_its_singleton_name(well: Any):
    item = failed(well, singleton="one")
    with full(well):
        other = well.enqueue(order, "b", workspace="acme", singleton="one")
        with pytest.raises(Conflict, match="another item of singleton"):
            item.run().retry()
        unchanged(item)
        is_broken.clear()
    assert other.result(WAIT) == "b is on its way"
    item.run().retry()
    assert item.result(WAIT) == "a is on its way"


def test_a_child_that_failed_is_retried_when_its_parent_has_its_turn(well: Any):
    item = failed(well, whole)
    is_broken.clear()
    child = well.run(f"{item.execution_id}:2")
    with full(well):
        item.run().retry()
        assert waits(well, item)
        assert child.status() == Status.FAILED
    assert item.result(WAIT) == "a is on its way"
    assert child.status() == Status.COMPLETED
    assert calls == {"charge a": 1, "ship a": 2, "other": 1}
    assert (busy["most"], used(well)) == (1, 0)


def test_a_child_that_cannot_be_retried_fails_its_parent_once_more(well: Any):
    item = failed(well, whole)
    is_broken.clear()
    with full(well):
        item.run().retry()
        well.delete(f"{item.execution_id}:2")
    with pytest.raises(ExecutionFailed):
        item.result(WAIT)
    assert (item.state().status, used(well)) == (ItemStatus.FAILED, 0)


def test_a_declared_run_goes_on_when_it_has_its_turn(well: Any):
    parcel = define("retried.parcel", call("retried.charge", "{{ trigger.input }}"), call("retried.ship", "{{ trigger.input }}"))
    item = failed(well, parcel)
    before = calls.copy()
    is_broken.clear()
    with full(well):
        item.run().retry()
        assert waits(well, item)
    item.result(WAIT)
    assert calls - before == {"ship a": 1, "other": 1}
    assert (item.state().status, busy["most"], used(well)) == (ItemStatus.COMPLETED, 1, 0)


def test_a_declared_run_is_cancelled_while_it_waits_for_its_turn(well: Any):
    parcel = define("retried.letter", signal("go"), call("retried.ship", "{{ trigger.input }}"))
    item = well.enqueue(parcel, "a", workspace="acme")
    until(lambda: item.state().status == ItemStatus.DISPATCHED)
    item.run().signal("go")
    with pytest.raises(ExecutionFailed, match="no lorry"):
        item.result(WAIT)
    with full(well):
        item.run().retry()
        assert item.cancel().status == ItemStatus.CANCELLED
        assert (item.run().status(), dict(well.load(item.execution_id).tokens)) == (Status.CANCELLED, {})
    assert used(well) == 0


@pytest.fixture
def blocking_well(queue_url: str) -> Iterator[Stepwell]:
    with Stepwell(queue_url) as well:
        well.workspaces.put("acme", tier="free")
        yield well


def lose_item(well: Stepwell, item: Any) -> None:
    """Return an item whose claims were lost as often as it has attempts."""
    write_unit_or_raise(well, ItemMark(item.item_id, "FAILED", error="nobody came back"))
    assert (item.state().status, item.run().status()) == (ItemStatus.FAILED, Status.PENDING)


def test_a_run_whose_item_ended_without_it_can_be_retried_once_more(blocking_well: Stepwell):
    """Or it would wait for a turn that never comes."""
    well = blocking_well
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        lose_item(well, item)
        with pytest.raises(ExecutionFailed, match="nobody came back"):
            item.result(WAIT)
        item.run().retry()
        assert waits(well, item)
    assert item.result(WAIT) == "a is on its way"
    assert calls["charge a"] == 1


def test_an_item_whose_run_is_deleted_just_after_it_was_retried_ends_at_its_turn(blocking_well: Stepwell):
    """The deleting caller read it before the retry. Ids are never used twice, so that no worker can start it any more."""
    well = blocking_well
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        write_unit_or_raise(well, Deletion(item.execution_id))
    with pytest.raises(ExecutionFailed, match="was deleted"):
        item.result(WAIT)
    assert (item.state().status, item.state().attempts, used(well)) == (ItemStatus.FAILED, 1, 0)


def test_an_item_that_ended_without_its_run_can_be_driven_again(blocking_well: Stepwell):
    well = blocking_well
    item = failed(well)
    is_broken.clear()
    with full(well):
        item.run().retry()
        lose_item(well, item)
        again = well.queue.redrive(item.item_id)
        assert item.run().status() == Status.CANCELLED
    assert again.result(WAIT) == "a is on its way"
    assert (calls["charge a"], used(well)) == (2, 0)
