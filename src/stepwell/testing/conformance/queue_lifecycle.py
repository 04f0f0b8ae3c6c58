"""The life of a queue item: marks, returns, cancels, recovery and redrive."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, InvalidInput, LeaseLost, NotFound
from stepwell.model.queue_item import CancelItem, DropItems, Enqueue, ItemMark, Redrive, ReturnItem
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    added,
    answers,
    claim_items,
    claimed_item,
    drop_items,
    end,
    give_back,
    ids_of,
    landed,
    new_item,
    put_workspace,
    recover,
    refused,
    statuses,
    stored,
    write,
)

ENDS = ["COMPLETED", "FAILED", "CANCELLED"]


# Marks.


def test_claimed_item_is_dispatched_then_ended(store: Store, clock: FakeClock) -> None:
    claimed = claimed_item(store)
    landed(write(store, ItemMark("a", "DISPATCHED", claimed.fence)))
    item = stored(store, "a")
    assert (item.status, item.lease_until_ms, item.finished_ms, item.fence) == ("DISPATCHED", None, None, claimed.fence)
    assert item.dispatched_ms is not None
    landed(write(store, ItemMark("a", "DISPATCHED", claimed.fence)))
    clock.advance(HOUR)
    earliest = store.now_ms()
    landed(write(store, ItemMark("a", "FAILED", claimed.fence, "broken")))
    item = stored(store, "a")
    assert (item.status, item.error, item.attempts) == ("FAILED", "broken", 1)
    assert item.finished_ms is not None
    assert earliest <= item.finished_ms <= store.now_ms()


@pytest.mark.parametrize("wanted", ["DISPATCHED", *ENDS])
def test_mark_with_a_fence_that_is_not_the_present_one_is_refused(store: Store, clock: FakeClock, wanted: str) -> None:
    """T31: a lost claim changes nothing."""
    first = claimed_item(store)
    refused(write(store, ItemMark("a", wanted, first.fence + 1)), LeaseLost)
    clock.advance(2 * HOUR)
    assert recover(store) == ["a"]
    refused(write(store, ItemMark("a", wanted, first.fence)), LeaseLost)
    [second] = claim_items(store)
    assert second.fence > first.fence
    refused(write(store, ItemMark("a", wanted, first.fence)), LeaseLost)
    refused(write(store, ItemMark("nobody", wanted, 1)), LeaseLost)
    landed(write(store, ItemMark("a", wanted, second.fence)))


def test_holder_that_is_late_keeps_its_item_while_nobody_has_recovered_it(store: Store, clock: FakeClock) -> None:
    claimed = claimed_item(store)
    clock.advance(2 * HOUR)
    landed(write(store, ItemMark("a", "DISPATCHED", claimed.fence)))
    assert recover(store) == []


@pytest.mark.parametrize("first", ENDS)
def test_first_end_wins(store: Store, first: str) -> None:
    """T40."""
    claimed = claimed_item(store)
    landed(write(store, ItemMark("a", first, error="first")))
    before = stored(store, "a")
    for wanted in ["DISPATCHED", *ENDS]:
        landed(write(store, ItemMark("a", wanted, error="second")))
        refused(write(store, ItemMark("a", wanted, claimed.fence)), LeaseLost)
    assert stored(store, "a") == before
    assert (before.status, before.error) == (first, "first")


def test_mark_without_a_fence_moves_whatever_has_not_ended(store: Store) -> None:
    add(store, "a", "b")
    landed(write(store, ItemMark("a", "COMPLETED")))
    landed(write(store, ItemMark("b", "DISPATCHED")))
    assert statuses(store) == {"a": "COMPLETED", "b": "DISPATCHED"}
    assert claim_items(store) == []


@pytest.mark.parametrize(("wanted", "fence"), [("CLAIMED", None), ("completed", None), ("", None), ("QUEUED", 1)])
def test_item_cannot_be_marked_as_claimed_nor_as_waiting_by_who_has_claimed_it(wanted: str, fence: int | None) -> None:
    with pytest.raises(InvalidInput):
        ItemMark("a", wanted, fence)


# Returns.


def test_item_returned_with_an_error_has_used_an_attempt(store: Store, clock: FakeClock) -> None:
    """T38, P5: dead after exactly as many as it may have, with the last error."""
    add(store, new_item("a", max_attempts=3))
    for attempt in (1, 2):
        [claimed] = claim_items(store)
        assert claimed.attempts == attempt
        item = give_back(store, claimed, f"error {attempt}", delay_ms=HOUR * 1000)
        assert (item.status, item.attempts, item.error, item.holder, item.claimed_ms) == (
            "QUEUED",
            attempt,
            f"error {attempt}",
            None,
            None,
        )
        assert claim_items(store) == []
        clock.advance(1.1 * HOUR)
    [claimed] = claim_items(store)
    item = give_back(store, claimed, "error 3", delay_ms=5)
    assert (item.status, item.attempts, item.error) == ("FAILED", 3, "error 3")
    assert item.finished_ms is not None
    clock.advance(9 * HOUR)
    assert claim_items(store) == []


def test_item_returned_without_an_error_has_its_attempt_back(store: Store) -> None:
    """T42: and waiting for capacity never uses one."""
    add(store, new_item("a", max_attempts=1))
    fences: list[int] = []
    for _ in range(5):
        [claimed] = claim_items(store)
        assert claimed.attempts == 1
        fences.append(claimed.fence)
        assert give_back(store, claimed).attempts == 0
    assert fences == sorted(set(fences))


def test_waiting_at_capacity_uses_no_attempt(store: Store) -> None:
    """T38."""
    put_workspace(store, "acme", concurrency=1)
    add(store, new_item("a", "acme"), new_item("b", "acme"))
    claim_items(store)
    for _ in range(20):
        assert claim_items(store) == []
    assert stored(store, "b").attempts == 0


def test_error_that_is_no_text_is_kept_as_far_as_it_is(store: Store) -> None:
    """Errors come from users' code: nothing in them may keep an item from ending."""
    item = give_back(store, claimed_item(store), "a\0b \ud800 é", is_final=True)
    assert item.error is not None
    assert item.error.startswith("a")
    assert item.error.endswith(" é")
    landed(write(store, ItemMark(claimed_item(store, "b").item_id, "FAILED", error="\0")))


def test_final_return_fails_at_once(store: Store) -> None:
    item = give_back(store, claimed_item(store), "never", is_final=True)
    assert (item.status, item.attempts, item.error) == ("FAILED", 1, "never")


def test_only_the_present_claim_returns_an_item(store: Store, clock: FakeClock) -> None:
    claimed = claimed_item(store)
    refused(write(store, ReturnItem("a", claimed.fence + 1)), LeaseLost)
    refused(write(store, ReturnItem("nobody", 1)), LeaseLost)
    give_back(store, claimed)
    refused(write(store, ReturnItem("a", claimed.fence, "late")), LeaseLost)
    [second] = claim_items(store)
    refused(write(store, ReturnItem("a", claimed.fence, "late")), LeaseLost)
    landed(write(store, ItemMark("a", "DISPATCHED", second.fence)))
    refused(write(store, ReturnItem("a", second.fence)), LeaseLost)
    assert statuses(store) == {"a": "DISPATCHED"}


def test_returned_item_goes_back_to_its_place_in_line(store: Store) -> None:
    add(store, "a", "b")
    [first] = claim_items(store, 1)
    give_back(store, first)
    assert ids_of(claim_items(store)) == ["a", "b"]


# Cancelling and driving again.


def test_waiting_or_claimed_item_is_cancelled(store: Store) -> None:
    """T40: cancel against claim."""
    put_workspace(store, "acme", concurrency=1)
    add(store, *(new_item(name, "acme") for name in ("a", "b", "c")))
    [claimed] = claim_items(store)
    for name in ("a", "b"):
        [item] = answers(write(store, CancelItem(name)))
        assert (item.status, item) == ("CANCELLED", stored(store, name))
        assert item.finished_ms is not None
    refused(write(store, ItemMark("a", "DISPATCHED", claimed.fence)), LeaseLost)
    refused(write(store, ReturnItem("a", claimed.fence)), LeaseLost)
    refused(write(store, SampleExecution(store, "of-a").creation(mark=ItemMark("a", "DISPATCHED", claimed.fence))), LeaseLost)
    assert ids_of(claim_items(store)) == ["c"]


def test_dispatched_or_ended_item_is_not_cancelled(store: Store) -> None:
    claimed = claimed_item(store)
    landed(write(store, ItemMark("a", "DISPATCHED", claimed.fence)))
    assert answers(write(store, CancelItem("a"))) == [stored(store, "a")]
    end(store, claimed)
    assert answers(write(store, CancelItem("a"))) == [stored(store, "a")]
    assert statuses(store) == {"a": "COMPLETED"}
    refused(write(store, CancelItem("nobody")), NotFound)


@pytest.mark.parametrize("fate", ["FAILED", "CANCELLED"])
def test_dead_item_is_driven_again_from_the_start(store: Store, clock: FakeClock, fate: str) -> None:
    claimed = claimed_item(store, max_attempts=1)
    landed(write(store, ItemMark("a", fate, claimed.fence, "broken")))
    clock.advance(HOUR)
    [item] = answers(write(store, Redrive("a", "again")))
    assert item == stored(store, "a")
    assert (item.status, item.attempts, item.execution_id, item.error, item.finished_ms) == ("QUEUED", 0, "again", None, None)
    [second] = claim_items(store)
    assert (second.execution_id, second.attempts) == ("again", 1)
    assert second.fence > claimed.fence
    refused(write(store, ItemMark("a", "COMPLETED", claimed.fence)), LeaseLost)


def test_only_a_dead_item_is_driven_again(store: Store) -> None:
    add(store, "a")
    refused(write(store, Redrive("a", "again")), Conflict)
    [claimed] = claim_items(store)
    refused(write(store, Redrive("a", "again")), Conflict)
    end(store, claimed)
    refused(write(store, Redrive("a", "again")), Conflict)
    refused(write(store, Redrive("nobody", "again")), NotFound)
    assert stored(store, "a").execution_id == "of-a"


def test_singleton_is_not_driven_again_beside_another(store: Store) -> None:
    end(store, claimed_item(store, "a", singleton="s"), status="FAILED")
    add(store, new_item("b", singleton="s"))
    refused(write(store, Redrive("a", "again")), Conflict)
    end(store, *claim_items(store))
    answers(write(store, Redrive("a", "again")))
    assert added(store, new_item("c", singleton="s"))[0].item_id == "a"


@pytest.mark.parametrize("name", ["a", "z"])
def test_singleton_is_free_for_the_units_after_the_one_that_ends_it(store: Store, name: str) -> None:
    """All of them in one group, and whichever comes first by its name."""
    end(store, claimed_item(store, "m", singleton="s"), status="FAILED")
    ending = claimed_item(store, name, singleton="s")
    outcomes = store.write([ItemMark(name, "COMPLETED", ending.fence), Redrive("m", "again"), CancelItem("m")])
    assert [item.status for outcome in outcomes[1:] for item in answers(outcome)] == ["QUEUED", "CANCELLED"]
    last = claimed_item(store, f"{name}-2", singleton="s")
    outcomes = store.write([ItemMark(last.item_id, "COMPLETED", last.fence), Enqueue((new_item(singleton="s"),))])
    assert [answer.is_new for answer in answers(outcomes[1])] == [True]


@pytest.mark.parametrize("name", ["a", "z"])
def test_dead_singleton_is_driven_again_in_the_group_that_ends_the_other(store: Store, name: str) -> None:
    end(store, claimed_item(store, "m", singleton="s"), status="FAILED")
    other = claimed_item(store, name, singleton="s")
    outcomes = store.write([ItemMark(name, "COMPLETED", other.fence), Redrive("m", "again")])
    assert [item.status for item in answers(outcomes[1])] == ["QUEUED"]
    assert statuses(store) == {"m": "QUEUED", name: "COMPLETED"}


# Waking.


def test_listener_is_told_of_items_that_the_other_store_adds_and_ends(store: Store, other_store: Store) -> None:
    """E5: a dispatcher in another process need not wait for its poll."""
    for change in (lambda: add(other_store, new_item()), lambda: end(other_store, *claim_items(other_store, 1))):
        topics, woken = list[str](), threading.Event()

        def wake(heard: str, topics: list[str] = topics, woken: threading.Event = woken) -> None:
            topics.append(heard)
            if heard in ("", "queue"):
                woken.set()

        add(other_store, *(new_item() for _ in range(100)))
        stop = store.listen(wake)
        try:
            # A listener may need a moment to begin, so one call may pass it by; a hundred may not.
            assert any(_heard(change, woken) for _ in range(100))
        finally:
            stop()
        assert set(topics) <= {"", "queue"}


def _heard(change: Callable[[], object], woken: threading.Event) -> bool:
    change()
    return woken.wait(0.3)


# Recovery and retention.


def test_item_of_a_dead_claimer_is_recovered_when_its_claim_ends(store: Store, clock: FakeClock) -> None:
    """E6, P4."""
    add(store, "a")
    claimed = claim_items(store)
    clock.advance(0.8 * HOUR)
    assert recover(store) == []
    clock.advance(0.3 * HOUR)
    assert recover(store) == ["a"]
    item = stored(store, "a")
    assert (item.status, item.attempts, item.holder, item.lease_until_ms) == ("QUEUED", 1, None, None)
    assert item.error
    [second] = claim_items(store)
    assert (second.attempts, second.fence > claimed[0].fence) == (2, True)
    assert recover(store) == []


def test_crashes_use_up_attempts(store: Store, clock: FakeClock) -> None:
    """T38: a poisonous item is dead after as many claimers as it may kill."""
    add(store, new_item("a", max_attempts=2))
    for _ in range(2):
        assert len(claim_items(store)) == 1
        clock.advance(1.1 * HOUR)
        assert recover(store) == ["a"]
    item = stored(store, "a")
    assert (item.status, item.attempts) == ("FAILED", 2)
    assert item.error
    assert claim_items(store) == []


def test_recovery_takes_the_longest_expired_first_and_forgets_none(store: Store, clock: FakeClock) -> None:
    """T33: a full page hides nothing for ever."""
    names = add(store, *(f"i{number}" for number in range(5)))
    for hours in (5, 4, 3, 2, 1):
        claim_items(store, 1, seconds=hours * HOUR)
    clock.advance(9 * HOUR)
    assert [recover(store, 2) for _ in range(4)] == [names[:2:-1], names[2:0:-1], names[:1], []]


def test_dispatched_item_is_never_recovered(store: Store, clock: FakeClock) -> None:
    claimed = claimed_item(store)
    landed(write(store, ItemMark("a", "DISPATCHED", claimed.fence)))
    clock.advance(100 * HOUR)
    assert recover(store) == []
    assert statuses(store) == {"a": "DISPATCHED"}


def test_only_ended_items_of_the_named_workspaces_are_dropped(store: Store, clock: FakeClock) -> None:
    for workspace in ("short", "ever"):
        put_workspace(store, workspace)
        for fate in ENDS:
            end(store, claimed_item(store, f"{workspace}-{fate}", workspace=workspace), status=fate)
        claimed = claimed_item(store, f"{workspace}-live", workspace=workspace)
        landed(write(store, ItemMark(claimed.item_id, "DISPATCHED", claimed.fence)))
        add(store, new_item(f"{workspace}-waiting", workspace, delay_ms=1_000 * HOUR * 1000))
    clock.advance(HOUR)
    assert drop_items(store, "short", hours=2) == 0
    assert len(statuses(store)) == 10
    clock.advance(1.5 * HOUR)
    assert drop_items(store, "short", "none", hours=2) == 3
    assert list(statuses(store, "short")) == ["short-live", "short-waiting"]
    assert len(statuses(store, "ever")) == 5
    assert drop_items(store, "short", "ever", hours=2) == 3


def test_items_are_dropped_by_the_status_they_ended_with(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    for number, fate in enumerate((*ENDS, *ENDS)):
        end(store, claimed_item(store, f"{number}-{fate}", workspace="acme"), status=fate)
    clock.advance(HOUR)
    assert drop_items(store, "acme", hours=1, statuses=("COMPLETED",), limit=1) == 1
    assert drop_items(store, "acme", hours=1, statuses=("COMPLETED", "CANCELLED")) == 3
    assert set(statuses(store).values()) == {"FAILED"}
    assert len(statuses(store)) == 2


@pytest.mark.parametrize(("status", "dropped"), [("COMPLETED", 1), ("FAILED", 0)])
def test_item_that_ended_just_now_is_dropped_if_none_is_kept(store: Store, status: str, dropped: int) -> None:
    put_workspace(store, "acme")
    end(store, claimed_item(store, "a", workspace="acme"))
    assert answers(write(store, DropItems(("acme",), (status,), 0))) == [dropped]


def test_drop_says_how_many_items_it_dropped(store: Store, clock: FakeClock) -> None:
    """T33: the caller knows from it whether there may be another page."""
    put_workspace(store, "short")
    for number in range(5):
        end(store, claimed_item(store, f"i{number}", workspace="short"))
    claimed_item(store, "late", workspace="short")
    clock.advance(2 * HOUR)
    assert [drop_items(store, "short", hours=1, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert list(statuses(store)) == ["late"]
