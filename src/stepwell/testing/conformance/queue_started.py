"""Executions that start without waiting: the commit that creates one takes a slot of its workspace, or is refused whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, LimitExceeded, NotFound
from stepwell.model.commit import Commit, Outcome, Written
from stepwell.model.queue_item import ItemMark, ItemStatus, NewItem
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.samples import (
    SampleExecution,
    add,
    claim_items,
    landed,
    new_item,
    put_workspace,
    recover,
    refused,
    status,
    statuses,
    stored,
    used,
    write,
)


def _starting(store: Store, name: str, workspace: str = "acme", **fields: Any) -> Commit:
    """Return the commit that creates an execution with its item, both of one name."""
    return SampleExecution(store, name, workspace=workspace).creation(items=(_started(name, workspace),), **fields)


def _started(name: str, workspace: str = "acme") -> NewItem:
    return new_item(name, workspace, execution_id=name, is_started=True, queue="$started", input=b'{"n":1}')


def _end(store: Store, name: str) -> Outcome:
    return write(store, ItemMark(name, ItemStatus.COMPLETED))


def test_start_takes_a_slot_and_its_end_frees_it(store: Store) -> None:
    put_workspace(store, concurrency=2)
    landed(write(store, _starting(store, "a")))
    landed(write(store, _starting(store, "b")))
    refusal = refused(write(store, _starting(store, "c")), LimitExceeded)
    assert refusal.limit == "concurrency"
    assert store.head("c") is None
    assert statuses(store) == {"a": "DISPATCHED", "b": "DISPATCHED"}
    landed(_end(store, "a"))
    landed(write(store, _starting(store, "c")))
    assert used(store, "acme") == 2


def test_started_item_is_stored_as_one_that_was_claimed_and_dispatched(store: Store) -> None:
    put_workspace(store, concurrency=1)
    landed(write(store, _starting(store, "a")))
    item = stored(store, "a")
    assert (item.status, item.queue, item.input, item.execution_id) == (ItemStatus.DISPATCHED, "$started", b'{"n":1}', "a")
    assert (item.attempts, item.fence, item.lease_until_ms, item.finished_ms) == (1, 1, None, None)
    assert item.claimed_ms == item.dispatched_ms == item.enqueued_ms == item.run_at_ms
    assert recover(store) == []


def test_claims_and_starts_share_the_slots(store: Store) -> None:
    put_workspace(store, concurrency=2)
    landed(write(store, _starting(store, "a")))
    add(store, new_item("b", "acme"), new_item("c", "acme"))
    assert [item.item_id for item in claim_items(store)] == ["b"]
    refused(write(store, _starting(store, "d")), LimitExceeded)
    landed(_end(store, "a"))
    assert [item.item_id for item in claim_items(store)] == ["c"]


def test_waiting_items_and_depth_do_not_hold_up_a_start(store: Store) -> None:
    put_workspace(store, concurrency=1, queue_depth=1)
    add(store, new_item("b", "acme"))
    landed(write(store, _starting(store, "a")))
    assert claim_items(store) == []


def test_start_in_a_paused_or_unknown_workspace_is_refused(store: Store) -> None:
    put_workspace(store, is_paused=True)
    refusal = refused(write(store, _starting(store, "a")), LimitExceeded)
    assert "paused" in str(refusal)
    refused(write(store, _starting(store, "b", "nowhere")), NotFound)
    assert (store.head("a"), store.head("b"), statuses(store)) == (None, None, {})


def test_start_of_a_known_execution_takes_no_slot(store: Store) -> None:
    put_workspace(store, concurrency=5)
    landed(write(store, _starting(store, "a")))
    again = SampleExecution(store, "a").creation(items=(_started("other"),))
    refused(write(store, again), AlreadyExists)
    assert used(store, "acme") == 1


def test_start_of_a_known_execution_in_an_unknown_workspace_is_told_of_the_execution(store: Store) -> None:
    put_workspace(store)
    landed(write(store, _starting(store, "a")))
    again = SampleExecution(store, "a", workspace="nowhere").creation(items=(_started("other", "nowhere"),))
    refused(write(store, again), AlreadyExists)
    assert statuses(store) == {"a": "DISPATCHED"}


def test_unlimited_workspace_takes_any_number_of_starts(store: Store) -> None:
    put_workspace(store)
    for name in "abc":
        landed(write(store, _starting(store, name)))
    assert used(store, "acme") == 3


def test_started_item_that_failed_can_wait_for_another_turn(store: Store) -> None:
    put_workspace(store, concurrency=1)
    landed(write(store, _starting(store, "a")))
    landed(write(store, ItemMark("a", ItemStatus.FAILED, None, "broke")))
    landed(write(store, _starting(store, "b")))
    landed(write(store, ItemMark("a", ItemStatus.QUEUED)))
    assert claim_items(store) == []
    landed(_end(store, "b"))
    assert [item.item_id for item in claim_items(store)] == ["a"]


def test_execution_can_be_created_with_an_item_that_waits(store: Store) -> None:
    put_workspace(store, concurrency=1)
    landed(write(store, _starting(store, "a")))
    waiting = new_item("b", "acme", execution_id="b", queue="$started")
    landed(write(store, SampleExecution(store, "b", workspace="acme").creation(items=(waiting,))))
    assert (statuses(store), claim_items(store)) == ({"a": "DISPATCHED", "b": "QUEUED"}, [])
    landed(_end(store, "a"))
    assert [item.item_id for item in claim_items(store)] == ["b"]


def test_last_commit_of_a_started_execution_frees_its_slot(store: Store) -> None:
    put_workspace(store, concurrency=1)
    landed(write(store, _starting(store, "a")))
    execution = SampleExecution(store, "a")
    execution.follow()
    execution.land(status("RUNNING"))
    execution.land(status("COMPLETED"), mark=ItemMark("a", ItemStatus.COMPLETED))
    assert (statuses(store), used(store, "acme")) == ({"a": "COMPLETED"}, 0)


def test_cap_holds_when_many_start_and_claim_at_once(store: Store, open_store: OpenStore) -> None:
    put_workspace(store, concurrency=3)
    add(store, *(new_item(f"q{number}", "acme") for number in range(20)))
    stores = [store] if not store.capabilities().is_shared else [store, open_store(), open_store(), open_store()]

    def compete(number: int) -> int:
        mine, taken = stores[number], 0
        for turn in range(10):
            taken += isinstance(write(mine, _starting(mine, f"s{number}-{turn}")), Written)
            taken += len(claim_items(mine, 2, holder=f"h{number}"))
            assert used(mine, "acme") <= 3
        return taken

    with ThreadPoolExecutor(len(stores)) as threads:
        taken = sum(threads.map(compete, range(len(stores))))
    assert taken == used(store, "acme") == 3
