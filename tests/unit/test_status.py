"""Statuses: the whole table of what may follow what."""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.sample import Chain, draft_of

from stepwell.errors import InvalidInput, ValidationFailed
from stepwell.model.status import FINAL, TRANSITIONS, Status, StepStatus, may_follow

# Written out by hand, apart from the table in the code: a change there must be meant.
ALLOWED = {
    ("PENDING", "RUNNING"),
    ("PENDING", "FAILED"),
    ("PENDING", "CANCELLED"),
    ("RUNNING", "PENDING"),
    ("RUNNING", "WAITING"),
    ("RUNNING", "COMPLETED"),
    ("RUNNING", "PARTIALLY_COMPLETED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "CANCELLED"),
    ("WAITING", "RUNNING"),
    ("WAITING", "PENDING"),
    ("WAITING", "FAILED"),
    ("WAITING", "CANCELLED"),
    ("FAILED", "PENDING"),
    ("PARTIALLY_COMPLETED", "PENDING"),
}
WAYS = {
    "PENDING": [],
    "RUNNING": ["RUNNING"],
    "WAITING": ["RUNNING", "WAITING"],
    "COMPLETED": ["RUNNING", "COMPLETED"],
    "PARTIALLY_COMPLETED": ["RUNNING", "PARTIALLY_COMPLETED"],
    "FAILED": ["FAILED"],
    "CANCELLED": ["CANCELLED"],
}


def standing_at(status: str) -> Chain:
    chain = Chain()
    for each in WAYS[status]:
        chain.change(lambda tx, each=each: tx.set_status(each))
    return chain


@pytest.mark.parametrize(("before", "after"), list(product(Status, Status)))
def test_only_the_listed_transitions_are_legal(before: Status, after: Status) -> None:
    is_allowed = (str(before), str(after)) in ALLOWED
    assert may_follow(before, after) == is_allowed
    chain = standing_at(before)
    assert chain.view.status is before
    if is_allowed:
        chain.change(lambda tx: tx.set_status(after))
        assert chain.view.status is after
    else:
        with pytest.raises(ValidationFailed, match=f"is {before} cannot become {after}"):
            chain.change(lambda tx: tx.set_status(after))
        assert chain.view.status is before


def test_table_covers_every_status() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {str(status) for status in FINAL} == {"COMPLETED", "PARTIALLY_COMPLETED", "FAILED", "CANCELLED"}
    assert "SKIPPED" in set(StepStatus)
    assert "PENDING" not in set(StepStatus)


@pytest.mark.parametrize("status", ["", "pending", "DONE", "Status.RUNNING", None, 5])
def test_unknown_status_is_refused_and_the_known_ones_are_named(status: str) -> None:
    with pytest.raises(InvalidInput, match="PENDING, RUNNING"):
        draft_of(Chain().state, lambda tx: tx.set_status(status))


def test_commit_says_the_new_status_only_if_it_sets_one() -> None:
    chain = Chain()
    assert draft_of(chain.state, lambda tx: tx.set_variable("a", 1)).status is None
    assert draft_of(chain.state, lambda tx: tx.set_status("RUNNING")).status is Status.RUNNING


def test_several_transitions_in_one_batch_are_checked_one_after_another() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.set_status("RUNNING"), tx.set_status("COMPLETED")))
    assert chain.view.status is Status.COMPLETED
    with pytest.raises(ValidationFailed):
        Chain().change(lambda tx: (tx.set_status("COMPLETED"), tx.set_status("RUNNING")))
