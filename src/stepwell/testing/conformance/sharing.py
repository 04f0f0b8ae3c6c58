"""Sharing: two stores on one database, as in two processes. Each sees, respects and is notified of the writes of the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LockHeld, NotFound
from stepwell.model.commit import Acquire, Claim, Deletion, LockGuard, Seen, StateBatch, Unlock
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import ABSENT, Increment
from stepwell.testing.conformance.concurrency import race, together
from stepwell.testing.conformance.fixtures import MakeStore, OpenStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    acquire,
    claim,
    content,
    everything,
    landed,
    put,
    refused,
    walk,
    write,
    write_state,
)


def test_what_one_store_writes_the_other_reads(store: Store, other_store: Store, execution: SampleExecution) -> None:
    commit = execution.land(snapshot=execution.snapshot())
    write_state(store, put("k", "v"))
    assert everything(other_store, execution.id) == everything(store, execution.id)
    assert other_store.commit_of(execution.id, commit.commit_id) == store.commit_of(execution.id, commit.commit_id)
    assert other_store.find(ExecutionQuery()) == [execution.head]
    assert content(other_store) == {"k": "v"}
    assert other_store.totals(SCOPE) == store.totals(SCOPE)
    assert other_store.changes(SCOPE, 0) == store.changes(SCOPE, 0)
    assert list(other_store.scopes()) == [SCOPE]


def test_stores_take_turns_on_one_execution(store: Store, other_store: Store, execution: SampleExecution) -> None:
    for _ in range(5):
        landed(write(other_store, execution.foresee()))
        landed(write(store, execution.foresee()))
    assert execution.head.revision == 10
    assert walk(other_store, execution.id).ok


def test_commit_that_the_other_store_outran_is_a_conflict(store: Store, other_store: Store, execution: SampleExecution) -> None:
    """T05."""
    late = execution.commit()
    landed(write(other_store, execution.foresee()))
    refused(write(store, late), Conflict)


def test_commit_id_that_the_other_store_wrote_is_seen(store: Store, other_store: Store, execution: SampleExecution) -> None:
    """T03: the process that sent it first is gone."""
    commit = execution.foresee()
    landed(write(other_store, commit))
    assert write(store, commit) == Seen(commit.header, commit.body)


def test_execution_that_the_other_store_deleted_is_gone(store: Store, other_store: Store, execution: SampleExecution) -> None:
    """T07."""
    execution.land()
    landed(write(other_store, Deletion(execution.id)))
    refused(write(store, execution.commit()), NotFound)
    refused(write(store, SampleExecution(store, execution.id).creation()), AlreadyExists)
    assert store.head(execution.id) is None


def test_leases_hold_across_stores(store: Store, other_store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    first = claim(store, execution.id, holder="a")
    refused(write(other_store, Claim(execution.id, "b", HOUR)), LockHeld)
    clock.advance(1.1 * HOUR)
    second = claim(other_store, execution.id, holder="b")
    assert second.fence > first.fence
    refused(write(store, execution.commit(fence=first.fence)), LeaseLost)
    landed(write(store, execution.commit(fence=second.fence)))


def test_locks_hold_across_stores(store: Store, other_store: Store, clock: FakeClock) -> None:
    first = acquire(store, holder="a")
    refused(write(other_store, Acquire("door", "b", HOUR)), LockHeld)
    clock.advance(1.1 * HOUR)
    second = acquire(other_store, holder="b")
    refused(write(store, Unlock("door", "a", first.fence)), LeaseLost)
    refused(write(store, StateBatch((put("k"),), (LockGuard("door", first.fence),))), LeaseLost)
    landed(write(other_store, Unlock("door", "b", second.fence)))
    fences = [first.fence, second.fence, acquire(store, holder="a").fence, acquire(other_store, "window").fence]
    assert fences == sorted(set(fences))


def test_scoped_state_is_compared_and_counted_across_stores(store: Store, other_store: Store) -> None:
    write_state(store, put("k", 1))
    refused(write(other_store, StateBatch((put("k", 2, expected=ABSENT),))), Conflict)
    write_state(other_store, put("k", 2, expected=1), Increment(SCOPE, "n"))
    write_state(store, Increment(SCOPE, "n"))
    assert content(store) == content(other_store) == {"k": 2, "n": 2}
    assert store.totals(SCOPE).revision == 4


@pytest.mark.timeout(300)
def test_every_race_between_two_stores_has_exactly_one_winner(store: Store, other_store: Store, execution: SampleExecution) -> None:
    """T05: each store has one writer, as each process has; nothing but the place itself decides between them."""
    race([lambda unit: write(store, unit), lambda unit: write(other_store, unit)], execution, 200)
    assert walk(other_store, execution.id).receipts == 201


def test_head_digest_is_new_as_soon_as_the_other_store_has_written(
    store: Store, other_store: Store, execution: SampleExecution
) -> None:
    for _ in range(20):
        landed(write(other_store, execution.foresee()))
        assert store.head_digests([execution.id]) == [execution.state.receipt]


@pytest.mark.parametrize("topic", ["state", "lock"])
def test_listener_is_told_of_what_the_other_store_writes(store: Store, other_store: Store, topic: str) -> None:
    woken, topics = threading.Event(), list[str]()

    def wake(heard: str) -> None:
        topics.append(heard)
        if heard in ("", topic):
            woken.set()

    def change() -> None:
        if topic == "state":
            write_state(other_store, Increment(SCOPE, "n"))
        else:
            lease = acquire(other_store)
            landed(write(other_store, Unlock("door", "a", lease.fence)))

    stop = store.listen(wake)
    try:
        # A listener may need a moment to begin, so one call may pass it by; a hundred may not.
        assert any(_heard(change, woken) for _ in range(100))
    finally:
        stop()
    assert set(topics) <= {"", "state", "lock"}


def _heard(change: Callable[[], None], woken: threading.Event) -> bool:
    change()
    return woken.wait(0.3)


def test_everything_is_there_after_closing_and_opening_again(
    other_store: Store, open_store: OpenStore, execution: SampleExecution
) -> None:
    execution.grow(3)
    lease, lock = claim(other_store, execution.id), acquire(other_store)
    write_state(other_store, put("k", "v"), put("ends", ttl=HOUR))
    before = (everything(other_store, execution.id), other_store.changes(SCOPE, 0), other_store.totals(SCOPE))
    execution.store.close()
    other_store.close()
    again = open_store()
    assert (everything(again, execution.id), again.changes(SCOPE, 0), again.totals(SCOPE)) == before
    refused(write(again, Acquire("door", "b", HOUR)), LockHeld)
    landed(write(again, execution.commit(fence=lease.fence, guards=(LockGuard("door", lock.fence),))))


def test_stores_that_open_at_the_same_moment_share_one_place(make_shared_store: MakeStore, clock: FakeClock) -> None:
    """T49: all find nothing there and begin to set it up; one does."""
    stores = [make_shared_store(clock, Limits()) for _ in range(4)]
    together(*(store.open for store in stores))
    try:
        for store in stores:
            write_state(store, Increment(SCOPE, "n"))
        assert [content(store) for store in stores] == [{"n": 4}] * 4
    finally:
        for store in stores:
            store.close()
