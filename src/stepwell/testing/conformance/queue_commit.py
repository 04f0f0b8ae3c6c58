"""The queue and commits: items and marks that ride with a commit land with it, or nothing of it does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LimitExceeded, NotFound
from stepwell.model.commit import Claim, Creation, Deletion, Rest, Seen
from stepwell.model.queue_item import CancelItem, Enqueue, ItemMark, Redrive
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    answers,
    claim,
    claim_items,
    claimed_item,
    content,
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


def test_mark_lands_with_the_creation_of_its_execution(store: Store) -> None:
    """E7: the execution and its item's status are one commit."""
    claimed = claimed_item(store)
    SampleExecution(store, claimed.execution_id).create(
        creation=Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True),
        mark=ItemMark("a", "DISPATCHED", claimed.fence),
    )
    assert statuses(store) == {"a": "DISPATCHED"}
    assert store.head("of-a") is not None


def test_execution_of_one_commit_goes_from_claimed_to_completed(store: Store) -> None:
    claimed = claimed_item(store)
    SampleExecution(store, claimed.execution_id).create(
        status("RUNNING"),
        status("COMPLETED"),
        creation=Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True),
        rest=Rest(is_final=True),
        mark=ItemMark("a", "COMPLETED", claimed.fence),
    )
    assert statuses(store) == {"a": "COMPLETED"}
    assert used(store, "default") == 0


@pytest.mark.parametrize("beside", [{}, {"ops": (put("k"),)}], ids=["fast path", "general path"])
def test_lease_of_a_new_execution_has_the_fence_of_its_items_claim(store: Store, clock: FakeClock, beside: dict[str, Any]) -> None:
    """T28: a worker that claims an item again, which it lost before the first commit, holds a lease with a higher fence."""
    claimed_item(store)
    clock.advance(2 * HOUR)
    recover(store)
    [second] = claim_items(store)
    creation = Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True, fence=second.fence)
    execution = SampleExecution(store, second.execution_id)
    execution.create(status("RUNNING"), creation=creation, mark=ItemMark("a", "DISPATCHED", second.fence), **beside)
    assert (second.fence, execution.head.fence) == (2, 2)
    refused(write(store, execution.commit(status("WAITING"), fence=1)), LeaseLost)
    execution.land(status("WAITING"), fence=2)
    clock.advance(2 * HOUR)
    assert claim(store, execution.id).fence > 2


def test_commit_whose_claim_was_lost_is_refused_whole(store: Store, clock: FakeClock) -> None:
    """T28, T31: two dispatchers have had the item; only the second one's execution is made."""
    first = claimed_item(store)
    clock.advance(2 * HOUR)
    recover(store)
    [second] = claim_items(store)
    execution = SampleExecution(store, first.execution_id)
    refused(write(store, execution.creation(mark=ItemMark("a", "DISPATCHED", first.fence), ops=(put("k"),))), LeaseLost)
    assert (store.head("of-a"), content(store), statuses(store)) == (None, {}, {"a": "CLAIMED"})
    execution.create(mark=ItemMark("a", "DISPATCHED", second.fence))
    assert statuses(store) == {"a": "DISPATCHED"}


def test_refused_commit_leaves_the_item_as_it_was(store: Store) -> None:
    claimed = claimed_item(store)
    execution = SampleExecution(store, "of-a").create()
    refused(write(store, SampleExecution(store, "of-a").creation(mark=ItemMark("a", "DISPATCHED", claimed.fence))), AlreadyExists)
    refused(write(store, execution.commit(fence=99, mark=ItemMark("a", "COMPLETED"), items=(new_item("b"),))), LeaseLost)
    assert statuses(store) == {"a": "CLAIMED"}


def test_commit_that_landed_before_moves_its_item_no_second_time(store: Store) -> None:
    """T03: the reply was lost; the retry meets its own first writes."""
    claimed = claimed_item(store)
    commit = SampleExecution(store, "of-a").creation(
        mark=ItemMark("a", "COMPLETED", claimed.fence), items=(new_item("b", key="k"),)
    )
    landed(write(store, commit))
    before = stored(store, "a"), stored(store, "b")
    assert isinstance(write(store, commit), Seen)
    assert (stored(store, "a"), stored(store, "b")) == before
    landed(write(store, ItemMark("b", "FAILED")))
    assert isinstance(write(store, commit), Seen)
    assert statuses(store) == {"a": "COMPLETED", "b": "FAILED"}


def test_late_end_of_an_old_execution_does_not_end_an_item_that_was_driven_again(store: Store) -> None:
    claimed = claimed_item(store)
    old = SampleExecution(store, "of-a").create(mark=ItemMark("a", "DISPATCHED", claimed.fence))
    landed(write(store, ItemMark("a", "FAILED")))
    answers(write(store, Redrive("a", "again")))
    old.land(mark=ItemMark("a", "COMPLETED"))
    assert statuses(store) == {"a": "QUEUED"}
    refused(write(store, old.commit(mark=ItemMark("a", "COMPLETED", claimed.fence))), LeaseLost)
    landed(write(store, Deletion("of-a")))
    assert statuses(store) == {"a": "QUEUED"}


def test_last_commit_of_an_execution_leaves_its_item_as_it_ended_before(store: Store) -> None:
    """T40: the first end wins; the commit itself is not refused for that."""
    claimed = claimed_item(store)
    execution = SampleExecution(store, "of-a").create(mark=ItemMark("a", "DISPATCHED", claimed.fence))
    landed(write(store, ItemMark("a", "FAILED", error="first")))
    before = stored(store, "a")
    execution.land(status("RUNNING"), status("COMPLETED"), rest=Rest(is_final=True), mark=ItemMark("a", "COMPLETED"))
    assert (stored(store, "a"), execution.head.status) == (before, "COMPLETED")


def test_last_commit_of_an_old_execution_leaves_its_redriven_item_alone(store: Store) -> None:
    """T40: the run that was given up ends late, while another dispatcher has the item and started another execution."""
    claimed = claimed_item(store)
    old = SampleExecution(store, "of-a").create(mark=ItemMark("a", "DISPATCHED", claimed.fence))
    landed(write(store, ItemMark("a", "FAILED")))
    answers(write(store, Redrive("a", "again")))
    assert ids_of(claim_items(store)) == ["a"]
    before = stored(store, "a")
    old.land(status("RUNNING"), status("COMPLETED"), rest=Rest(is_final=True), mark=ItemMark("a", "COMPLETED"))
    assert stored(store, "a") == before


def test_last_commit_of_a_holder_that_lost_its_lease_does_not_end_the_item(store: Store, clock: FakeClock) -> None:
    """T32: its successor has committed nothing yet, so that it is the fence alone that tells the two apart."""
    claimed = claimed_item(store)
    execution = SampleExecution(store, "of-a").create(
        creation=Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True),
        mark=ItemMark("a", "DISPATCHED", claimed.fence),
    )
    clock.advance(2 * HOUR)
    [heir] = answers(write(store, Claim("of-a", "other", HOUR)))
    end = status("RUNNING"), status("COMPLETED")
    last = {"rest": Rest(is_final=True), "mark": ItemMark("a", "COMPLETED")}
    refused(write(store, execution.commit(*end, fence=heir.fence - 1, **last)), LeaseLost)
    assert (statuses(store), execution.head.status) == ({"a": "DISPATCHED"}, "PENDING")
    execution.land(*end, fence=heir.fence, **last)
    assert statuses(store) == {"a": "COMPLETED"}


def test_items_land_with_their_commit_or_not_at_all(store: Store, execution: SampleExecution) -> None:
    """T39: enqueueing inside a step is part of the step."""
    refused(write(store, execution.commit(fence=99, items=(new_item("a"), new_item("b", key="k")))), LeaseLost)
    assert statuses(store) == {}
    execution.land(items=(new_item("a"), new_item("b", key="k")))
    assert ids_of(claim_items(store)) == ["a", "b"]


def test_refused_item_refuses_its_commit(store: Store, execution: SampleExecution) -> None:
    """T39: nothing of either is there."""
    put_workspace(store, "small", queue_depth=1)
    add(store, new_item("there", key="k"))
    for bad, kind in (
        (new_item("x", "nobody"), NotFound),
        (new_item("x", key="k", body_digest="d2"), Conflict),
        (new_item("there", body_digest="d2"), Conflict),
    ):
        refused(write(store, execution.commit(items=(new_item("a"), bad), ops=(put("k"),))), kind)
    full = (new_item("a", "small"), new_item("b", "small"))
    refused(write(store, execution.commit(items=full)), LimitExceeded)
    assert (list(statuses(store)), content(store), execution.head.revision) == (["there"], {}, 0)
    execution.land(items=(new_item("a", "small"), new_item("other", key="k")))
    assert list(statuses(store)) == ["there", "a"]


def test_room_is_counted_anew_after_a_commit_was_refused(store: Store, execution: SampleExecution) -> None:
    put_workspace(store, "small", queue_depth=2)
    stale = execution.commit(fence=99, items=(new_item("a", "small"), new_item("b", "small")))
    outcomes = store.write([stale, Enqueue((new_item("c", "small"), new_item("d", "small")))])
    refused(outcomes[0], LeaseLost)
    assert [answer.is_new for answer in answers(outcomes[1])] == [True, True]


def test_deleted_execution_ends_its_item(store: Store) -> None:
    """T35: delete while running."""
    claimed = claimed_item(store)
    SampleExecution(store, "of-a").create(mark=ItemMark("a", "DISPATCHED", claimed.fence))
    landed(write(store, Deletion("of-a")))
    assert statuses(store) == {"a": "CANCELLED"}
    claimed = claimed_item(store, "b")
    SampleExecution(store, "of-b").create(mark=ItemMark("b", "COMPLETED", claimed.fence))
    landed(write(store, Deletion("of-b")))
    assert statuses(store) == {"a": "CANCELLED", "b": "COMPLETED"}
    SampleExecution(store, "free").create()
    landed(write(store, Deletion("free")))


def test_deleted_execution_ends_its_item_and_no_other_that_wanted_its_id(store: Store) -> None:
    """An id of the caller's own may be asked for in two workspaces; the item that came too late must not hide the other."""
    put_workspace(store, "other")
    first = claimed_item(store)
    write(store, Enqueue((msgspec.structs.replace(new_item("late", "other"), execution_id="of-a"),)))
    SampleExecution(store, "of-a").create(mark=ItemMark("a", "DISPATCHED", first.fence))
    landed(write(store, CancelItem("late")))
    landed(write(store, Deletion("of-a")))
    assert statuses(store) == {"a": "CANCELLED", "late": "CANCELLED"}


def test_item_waits_on_when_an_execution_is_deleted_that_only_has_its_id(store: Store) -> None:
    add(store, "a")
    SampleExecution(store, "of-a").create()
    landed(write(store, Deletion("of-a")))
    assert statuses(store) == {"a": "QUEUED"}
    assert ids_of(claim_items(store)) == ["a"]
    SampleExecution(store, "of-b").create()
    claimed_item(store, "b")
    landed(write(store, Deletion("of-b")))
    assert statuses(store) == {"a": "CLAIMED", "b": "CLAIMED"}
