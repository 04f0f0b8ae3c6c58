"""Depth: how many items of a workspace may wait, and which of a group there is room for."""

from __future__ import annotations

import pytest

from stepwell.contract.store import Store
from stepwell.errors import LimitExceeded
from stepwell.model.queue_item import CancelItem, Enqueue, Enqueued, Redrive, ReturnItem
from stepwell.testing.conformance.queue_sample import add, added, claim_items, end, new_item, put_workspace, statuses
from stepwell.testing.conformance.sample import HOUR, answers, landed, refused, write


def test_full_workspace_is_refused_until_something_has_started(store: Store) -> None:
    put_workspace(store, "acme", queue_depth=3)
    add(store, new_item("other"), new_item("a", "acme"), new_item("b", "acme", delay_ms=HOUR * 1000))
    third, fourth, other = added(store, new_item("c", "acme"), new_item("d", "acme"), new_item("more"))
    assert (third.is_new, other.is_new) == (True, True)
    assert refused(fourth, LimitExceeded).limit == "queue_depth"
    refused(added(store, new_item("d", "acme"))[0], LimitExceeded)
    assert store.item("d") is None
    claim_items(store, 2)
    add(store, new_item("e", "acme"))
    refused(added(store, new_item("f", "acme"))[0], LimitExceeded)


@pytest.mark.parametrize("how", ["returned", "driven again"])
def test_item_that_waits_again_takes_up_room_for_those_behind_it_in_a_group(store: Store, how: str) -> None:
    put_workspace(store, "acme", queue_depth=1)
    add(store, new_item("a", "acme"))
    [claimed] = claim_items(store)
    unit = ReturnItem("a", claimed.fence)
    if how == "driven again":
        end(store, claimed, status="FAILED")
        unit = Redrive("a", "again")
    outcome, second = store.write([unit, Enqueue((new_item("b", "acme"),))])
    landed(outcome)
    refused(answers(second)[0], LimitExceeded)
    assert list(statuses(store)) == ["a"]


@pytest.mark.parametrize("delay_ms", [0, HOUR * 1000])
def test_workspace_that_has_more_waiting_than_it_may_stays_full_when_one_of_them_goes(store: Store, delay_ms: int) -> None:
    put_workspace(store, "acme", queue_depth=1)
    add(store, new_item("a", "acme"))
    [claimed] = claim_items(store)
    add(store, new_item("b", "acme"))
    landed(write(store, ReturnItem("a", claimed.fence, delay_ms=delay_ms)))
    outcome, second = store.write([CancelItem("b"), Enqueue((new_item("c", "acme"),))])
    landed(outcome)
    refused(answers(second)[0], LimitExceeded)
    outcome, third = store.write([CancelItem("a"), Enqueue((new_item("c", "acme"),))])
    landed(outcome)
    assert answers(third)[0].is_new


def test_depth_is_changed_at_once(store: Store) -> None:
    put_workspace(store, "acme", queue_depth=0)
    refused(added(store, new_item("a", "acme"))[0], LimitExceeded)
    put_workspace(store, "acme", queue_depth=1)
    add(store, new_item("a", "acme"))
    put_workspace(store, "acme", queue_depth=None)
    add(store, new_item("b", "acme"))


def test_full_workspace_still_answers_for_what_is_there(store: Store) -> None:
    put_workspace(store, "acme", queue_depth=1)
    asked = new_item("a", "acme", key="k", debounce="d")
    add(store, asked)
    for again in (asked, new_item("b", "acme", key="k"), new_item("c", "acme", debounce="d")):
        assert added(store, again) == [Enqueued("a", "of-a", "PENDING", False)]
