"""Starts that are given back to a rate: an item that is returned unstarted has used up nothing."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import LeaseLost
from stepwell.model.queue_item import ClaimItems, PutQueue, QueueSettings, ReturnItem
from stepwell.testing.conformance.queue_sample import add, claim_items, give_back, ids_of, new_item, put_workspace
from stepwell.testing.conformance.sample import HOUR, answers, landed, refused, write

LIMITED = pytest.mark.parametrize("whose", ["workspace", "queue", "workspace and queue"])


def limit_starts(store: Store, whose: str, rate: float | None = 1 / HOUR) -> None:
    """Give workspace ``acme``, queue ``mail`` or both a rate, and the other none."""
    put_workspace(store, "acme", rate_per_second=rate if "workspace" in whose else None)
    if "queue" in whose:
        landed(write(store, PutQueue(QueueSettings(name="mail", rate_per_second=rate))))


def add_mail(store: Store, *names: str) -> None:
    """Add items that a rate limits."""
    add(store, *(new_item(name, "acme", queue="mail") for name in names))


@LIMITED
@pytest.mark.parametrize("ending", [{"delay_ms": 3 * HOUR * 1000}, {"is_final": True}], ids=["to wait", "for good"])
def test_item_returned_without_an_error_leaves_room_for_another_start(store: Store, whose: str, ending: dict[str, Any]) -> None:
    limit_starts(store, whose)
    add_mail(store, "a", "b", "c")
    [first] = claim_items(store)
    give_back(store, first, **ending)
    assert [ids_of(claim_items(store)) for _ in range(2)] == [["b"], []]


@LIMITED
@pytest.mark.parametrize("is_final", [False, True])
def test_item_returned_with_an_error_has_started(store: Store, whose: str, is_final: bool) -> None:
    limit_starts(store, whose)
    add_mail(store, "a", "b")
    [first] = claim_items(store)
    give_back(store, first, "broken", is_final=is_final)
    assert claim_items(store) == []


@LIMITED
def test_all_starts_of_a_claim_can_be_given_back_and_no_more(store: Store, clock: FakeClock, whose: str) -> None:
    """Each less the moment that it was held, which is less than an interval for all of them here."""
    limit_starts(store, whose, 3)
    add_mail(store, *"abcdef")
    for first in claim_items(store):
        give_back(store, first)
        refused(write(store, ReturnItem(first.item_id, first.fence)), LeaseLost)
    clock.advance(0.2)
    assert ids_of(claim_items(store)) == ["a", "b", "c"]


@LIMITED
def test_start_that_is_given_back_serves_the_claim_behind_it(store: Store, whose: str) -> None:
    limit_starts(store, whose)
    add_mail(store, "a", "b")
    [first] = claim_items(store)
    claim = ClaimItems("d", HOUR, 5)
    none, _, some, last = store.write([claim, ReturnItem("a", first.fence, delay_ms=HOUR * 1000), claim, claim])
    assert [ids_of(answers(outcome)) for outcome in (none, some, last)] == [[], ["b"], []]


@LIMITED
def test_start_is_given_back_only_while_it_counts(store: Store, clock: FakeClock, whose: str) -> None:
    """Later it would be taken from others, who have started when their time had come."""
    limit_starts(store, whose)
    add_mail(store, "a", "b", "c")
    [first] = claim_items(store, seconds=9 * HOUR)
    clock.advance(1.1 * HOUR)
    assert ids_of(claim_items(store)) == ["b"]
    give_back(store, first)
    assert claim_items(store) == []
    clock.advance(1.1 * HOUR)
    assert ids_of(claim_items(store)) == ["a"]


@LIMITED
@pytest.mark.parametrize("rate", [None, 0])
def test_no_start_is_given_back_to_a_rate_that_is_gone(store: Store, whose: str, rate: float | None) -> None:
    limit_starts(store, whose)
    add_mail(store, *"abcd")
    [first] = claim_items(store)
    limit_starts(store, whose, rate)
    assert give_back(store, first).attempts == 0
    assert len(claim_items(store, 3)) == (3 if rate is None else 0)
    limit_starts(store, whose)
    assert claim_items(store) == []
