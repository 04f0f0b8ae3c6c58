"""Retry of an execution that has an item: the commit that reopens the execution returns the item to the queue."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LeaseLost
from stepwell.model.commit import Commit, Creation, Rest, Seen
from stepwell.model.queue_item import CancelItem, Enqueue, ItemMark, Redrive
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    answers,
    claim_items,
    claimed_item,
    content,
    drop_items,
    ids_of,
    landed,
    new_item,
    put,
    put_workspace,
    recover,
    refused,
    status,
    statuses,
    stored,
    used,
    write,
)

AGAIN = ItemMark("a", "QUEUED")


def failed_run(store: Store, name: str = "a", **fields: Any) -> SampleExecution:
    """The execution of an item that failed, and ended its item with it."""
    claimed = claimed_item(store, name, **fields)
    run = SampleExecution(store, claimed.execution_id).create(
        status("RUNNING"),
        creation=Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True),
        mark=ItemMark(name, "DISPATCHED", claimed.fence),
    )
    run.land(status("FAILED"), rest=Rest(is_final=True), mark=ItemMark(name, "FAILED", error="broken"))
    return run


def again(run: SampleExecution, item_id: str = "a", **fields: Any) -> Commit:
    """The commit that reopens an execution and sends its item back."""
    return run.commit(status("PENDING"), rest=Rest(), mark=ItemMark(item_id, "QUEUED"), **fields)


def test_item_waits_again_with_the_commit_that_reopens_its_execution(store: Store, clock: FakeClock) -> None:
    run = failed_run(store)
    clock.advance(HOUR)
    earliest = store.now_ms()
    landed(write(store, again(run)))
    item = stored(store, "a")
    assert (item.status, item.execution_id, item.attempts, item.error) == ("QUEUED", "of-a", 0, None)
    assert (item.holder, item.claimed_ms, item.dispatched_ms, item.finished_ms, item.lease_until_ms) == (None,) * 5
    assert earliest <= item.run_at_ms <= store.now_ms()
    head = store.head("of-a")
    assert head is not None
    assert (head.status, head.wake_ms, head.holder) == ("PENDING", None, None)
    [claimed] = claim_items(store)
    assert (claimed.item_id, claimed.execution_id, claimed.attempts) == ("a", "of-a", 1)
    assert claimed.fence > 1


def test_item_that_waits_again_keeps_to_the_cap(store: Store) -> None:
    put_workspace(store, "acme", concurrency=1)
    run = failed_run(store, workspace="acme")
    add(store, new_item("b", "acme"))
    [other] = claim_items(store)
    landed(write(store, again(run)))
    assert (claim_items(store), used(store, "acme")) == ([], 1)
    landed(write(store, ItemMark("b", "COMPLETED", other.fence)))
    assert ids_of(claim_items(store)) == ["a"]


def test_item_goes_on_with_the_commit_that_makes_its_execution_due(store: Store, clock: FakeClock) -> None:
    """T28, T31: by the claim of its second turn alone."""
    run = failed_run(store)
    run.land(status("PENDING"), rest=Rest(), mark=AGAIN)
    [first] = claim_items(store)
    clock.advance(2 * HOUR)
    assert recover(store) == ["a"]
    [second] = claim_items(store)
    turn = {"rest": Rest(wake_ms=0), "ops": (put("k"),)}
    refused(write(store, run.commit(status("RUNNING"), mark=ItemMark("a", "DISPATCHED", first.fence), **turn)), LeaseLost)
    assert (content(store), statuses(store), run.head.status) == ({}, {"a": "CLAIMED"}, "PENDING")
    run.land(status("RUNNING"), mark=ItemMark("a", "DISPATCHED", second.fence), **turn)
    head = store.head("of-a")
    assert head is not None
    assert (statuses(store), head.status, head.wake_ms) == ({"a": "DISPATCHED"}, "RUNNING", 0)
    run.land(status("COMPLETED"), rest=Rest(is_final=True), mark=ItemMark("a", "COMPLETED"))
    assert (statuses(store), stored(store, "a").error) == ({"a": "COMPLETED"}, None)


def test_execution_that_ends_while_its_item_waits_ends_that_too(store: Store) -> None:
    """Alone, and in a group that a store may write at once."""
    runs = [failed_run(store, name) for name in "abc"]
    for run, name in zip(runs, "abc", strict=True):
        run.land(status("PENDING"), rest=Rest(), mark=ItemMark(name, "QUEUED"))
    ends = [
        run.commit(status("CANCELLED"), rest=Rest(is_final=True), mark=ItemMark(name, "CANCELLED"), is_named=False)
        for run, name in zip(runs, "abc", strict=True)
    ]
    landed(write(store, ends[0]))
    for outcome in store.write(ends[1:]):
        landed(outcome)
    assert statuses(store) == dict.fromkeys("abc", "CANCELLED")
    assert (claim_items(store), used(store, "default")) == ([], 0)


def test_execution_that_ends_while_its_item_is_claimed_again_ends_that_too(store: Store) -> None:
    run = failed_run(store)
    run.land(status("PENDING"), rest=Rest(), mark=AGAIN)
    [claimed] = claim_items(store)
    run.land(status("CANCELLED"), rest=Rest(is_final=True), mark=ItemMark("a", "CANCELLED"))
    assert (statuses(store), used(store, "default")) == ({"a": "CANCELLED"}, 0)
    refused(write(store, ItemMark("a", "DISPATCHED", claimed.fence)), LeaseLost)


def unwritten(store: Store, run: SampleExecution, refusal: Conflict, *words: str) -> None:
    """Check that nothing of a commit was written, and return its refusal."""
    head = store.head(run.head.execution_id)
    assert head is not None
    assert (head.status, head.revision, content(store)) == ("FAILED", 1, {})
    assert all(word in str(refusal) for word in words)


def test_execution_whose_item_was_dropped_is_not_reopened(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    run = failed_run(store, workspace="acme")
    clock.advance(2 * HOUR)
    assert drop_items(store, "acme", hours=1) == 1
    assert store.item("a") is None
    unwritten(store, run, refused(write(store, again(run, ops=(put("k"),))), Conflict), "dropped", "enqueue")


def test_execution_whose_item_was_driven_again_is_not_reopened(store: Store) -> None:
    run = failed_run(store)
    answers(write(store, Redrive("a", "another")))
    before = stored(store, "a")
    for _ in range(2):
        unwritten(store, run, refused(write(store, again(run, ops=(put("k"),))), Conflict), "'another'")
        assert stored(store, "a").execution_id == before.execution_id == "another"
        write(store, CancelItem("a"))


def test_item_that_has_not_failed_does_not_wait_again(store: Store) -> None:
    run = failed_run(store)
    run.land(status("PENDING"), rest=Rest(), mark=AGAIN)
    before = stored(store, "a")
    for _ in range(2):  # while it waits, and while it is claimed
        refused(write(store, run.commit(mark=AGAIN)), Conflict)
        refused(write(store, AGAIN), Conflict)
        refused(write(store, Redrive("a", "another")), Conflict)
        claim_items(store)
    assert stored(store, "a").execution_id == before.execution_id
    landed(write(store, ItemMark("a", "COMPLETED")))
    refused(write(store, run.commit(mark=AGAIN)), Conflict)
    assert statuses(store) == {"a": "COMPLETED"}


def test_item_that_was_cancelled_while_it_waited_can_wait_again(store: Store) -> None:
    run = failed_run(store)
    run.land(status("PENDING"), rest=Rest(), mark=AGAIN)
    write(store, CancelItem("a"))
    run.land(rest=Rest(), mark=AGAIN)
    assert statuses(store) == {"a": "QUEUED"}
    assert ids_of(claim_items(store)) == ["a"]


def test_item_does_not_wait_again_beside_another_of_its_singleton_name(store: Store) -> None:
    """As one that is driven again."""
    run = failed_run(store, singleton="s")
    add(store, new_item("b", singleton="s"))
    unwritten(store, run, refused(write(store, again(run, ops=(put("k"),))), Conflict), "'s'")
    landed(write(store, ItemMark("b", "COMPLETED")))
    run.land(status("PENDING"), rest=Rest(), mark=AGAIN)
    [answer] = answers(write(store, Enqueue((new_item("c", singleton="s"),))))
    assert (answer.item_id, answer.is_new) == ("a", False)
    assert statuses(store) == {"a": "QUEUED", "b": "COMPLETED"}


def test_item_that_waits_again_keeps_its_input_despite_its_debounce_key(store: Store) -> None:
    """Its execution goes on from its record: what a later request asks for would be lost."""
    run = failed_run(store, debounce="d", input=b"1")
    run.land(status("PENDING"), rest=Rest(), mark=AGAIN)
    add(store, new_item("b", debounce="d", input=b"2"))
    [answer] = answers(write(store, Enqueue((new_item("c", debounce="d", input=b"3"),))))
    assert (answer.item_id, answer.is_new) == ("b", False)
    assert [(item.item_id, item.input) for item in claim_items(store)] == [("a", b"1"), ("b", b"3")]


def test_item_does_not_wait_again_beside_one_that_comes_with_its_commit(store: Store) -> None:
    run = failed_run(store, singleton="s")
    unwritten(store, run, refused(write(store, again(run, items=(new_item("b", singleton="s"),))), Conflict), "'s'")
    assert statuses(store) == {"a": "FAILED"}
    landed(write(store, again(run, items=(new_item("b"),))))
    assert statuses(store) == {"a": "QUEUED", "b": "QUEUED"}


def test_refused_commit_leaves_its_item_ended(store: Store) -> None:
    run = failed_run(store)
    refused(write(store, again(run, fence=99)), LeaseLost)
    assert statuses(store) == {"a": "FAILED"}


@pytest.mark.parametrize("meanwhile", ["waits", "claimed", "ended"])
def test_commit_that_landed_before_sends_its_item_back_no_second_time(store: Store, meanwhile: str) -> None:
    """T03: the reply was lost."""
    run = failed_run(store)
    commit = again(run)
    landed(write(store, commit))
    if meanwhile != "waits":
        claim_items(store)
    if meanwhile == "ended":
        landed(write(store, ItemMark("a", "FAILED")))
    before = stored(store, "a")
    assert isinstance(write(store, commit), Seen)
    assert stored(store, "a") == before
