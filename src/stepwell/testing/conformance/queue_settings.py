"""Optimistic changes of tiers, workspaces and named queues: of two at the same moment, one lands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, NotFound
from stepwell.model.commit import Outcome, Unit, Written
from stepwell.model.queue_item import PutQueue, PutTier, PutWorkspace, QueueSettings, Tier, Workspace
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.testing.conformance.concurrency import together
from stepwell.testing.conformance.samples import HOUR, add, claim_items, landed, new_item, put_workspace, refused, write

Make = Callable[..., Unit]
Writer = Callable[[Unit], Outcome]
THREADS = 8


def tier(based_on: Any = msgspec.UNSET, **fields: Any) -> PutTier:
    return PutTier(replace(Tier(name="own", concurrency=1), **fields), based_on)


def workspace(based_on: Any = msgspec.UNSET, **fields: Any) -> PutWorkspace:
    return PutWorkspace(replace(Workspace(workspace_id="acme", tier="free"), **fields), based_on)


def queue(based_on: Any = msgspec.UNSET, **fields: Any) -> PutQueue:
    return PutQueue(replace(QueueSettings(name="mail", concurrency=1), **fields), based_on)


OTHERS: dict[Make, Sequence[dict[str, Any]]] = {
    tier: (
        *({"concurrency": None}, {"concurrency": 2**53}, {"weight": 1 / 3}, {"weight": 1_000_000}, {"queue_depth": 0}),
        *({"rate_per_second": 7}, {"rate_per_second": 0.1 + 0.2}, {"state_bytes": 9}, {"retention_seconds": None}),
        *({"retention_seconds": 2**53}, {"retention_seconds": 1e-300}, {"child_concurrency": None}, {"child_concurrency": 7}),
    ),
    workspace: ({"tier": "scale"}, {"is_paused": True}),
    queue: ({"is_paused": True}, {"concurrency": None}, {"rate_per_second": 7}, {"rate_per_second": 0.1 + 0.2}),
}
"""Other than the plain ones, each in one field."""

KINDS = list(OTHERS)
EACH = [(make, fields) for make in KINDS for fields in OTHERS[make]]


def present(store: Store, make: Make) -> Any:
    """Return the stored settings that a unit writes."""
    if make is tier:
        return next((each for each in store.tiers() if each.name == "own"), None)
    if make is workspace:
        return next((each for each in store.workspaces() if each.workspace_id == "acme"), None)
    return next((each for each in store.queues() if each.name == "mail"), None)


def now_there(store: Store, unit: Unit, make: Make) -> Any:
    """Return the stored settings after a unit that must land."""
    landed(write(store, unit))
    return present(store, make)


@pytest.mark.parametrize(("make", "fields"), EACH)
def test_change_that_is_based_on_what_is_there_lands(store: Store, make: Make, fields: dict[str, Any]) -> None:
    plain = now_there(store, make(None), make)
    other = now_there(store, make(plain, **fields), make)
    assert other == replace(plain, **fields)
    assert now_there(store, make(other), make) == plain


@pytest.mark.parametrize(("make", "fields"), EACH)
def test_change_that_is_based_on_what_was_there_is_refused(store: Store, make: Make, fields: dict[str, Any]) -> None:
    plain = now_there(store, make(None), make)
    other = now_there(store, make(**fields), make)
    refused(write(store, make(plain, **fields)), Conflict)
    refused(write(store, make(plain)), Conflict)
    assert present(store, make) == other


@pytest.mark.parametrize("make", KINDS)
def test_what_another_has_made_is_not_made_again(store: Store, make: Make) -> None:
    plain = now_there(store, make(None), make)
    for fields in ({}, OTHERS[make][0]):
        refused(write(store, make(None, **fields)), Conflict)
    assert present(store, make) == plain


@pytest.mark.parametrize("make", KINDS)
def test_change_of_what_was_never_there_is_refused(store: Store, make: Make) -> None:
    never = msgspec.structs.astuple(make())[0]
    refused(write(store, make(never)), Conflict)
    assert present(store, make) is None


@pytest.mark.parametrize("make", KINDS)
def test_of_two_changes_in_a_group_the_first_lands_and_stops_no_other(store: Store, make: Make) -> None:
    first, second = OTHERS[make][:2]
    plain = now_there(store, make(None), make)
    group = [make(plain, **first), make(plain, **second), PutTier(Tier(name="beside"))]
    assert [type(outcome) for outcome in store.write(group)] == [Written, Conflict, Written]
    assert present(store, make) == replace(plain, **first)
    assert "beside" in [each.name for each in store.tiers()]


def test_late_change_to_an_unknown_tier_names_the_tier(store: Store) -> None:
    landed(write(store, workspace()))
    refused(write(store, workspace(None, tier="no such tier")), NotFound)


@pytest.mark.parametrize("which", ["tier", "workspace", "queue"])
def test_refused_change_of_a_rate_puts_no_start_forward(store: Store, clock: FakeClock, which: str) -> None:
    slow, fast = 0.001 / HOUR, 1_000.0
    put_workspace(store, "acme", rate_per_second=None if which == "queue" else slow)
    landed(write(store, queue(concurrency=None, rate_per_second=slow if which == "queue" else None)))
    landed(write(store, tier(rate_per_second=fast)))
    add(store, *(new_item(workspace="acme", queue="mail") for _ in range(3)))
    assert len(claim_items(store)) == 1
    faster: dict[str, Unit] = {
        "tier": tier(None, name="acme", rate_per_second=fast),
        "workspace": workspace(None, tier="own"),
        "queue": queue(None, rate_per_second=fast),
    }
    refused(write(store, faster[which]), Conflict)
    clock.advance(HOUR)
    assert claim_items(store) == []


def _write_beside(write: Writer, unit: Unit, outcomes: list[Outcome]) -> None:
    outcomes.append(write(unit))


def one_lands(make: Make, writers: Sequence[Writer], store: Store) -> None:
    """Have all writers make a thing at the same moment, and then change it; each time exactly one of them may."""
    based_on = None
    for fields in ({}, *OTHERS[make][:2]):
        outcomes: list[Outcome] = []
        unit = make(based_on, **fields)
        together(*(partial(_write_beside, each, unit, outcomes) for each in writers))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * (len(writers) - 1) + ["Written"]
        based_on = present(store, make)


@pytest.mark.parametrize("make", KINDS)
def test_of_many_threads_one_makes_and_one_changes_it(store: Store, committer: GroupCommit, make: Make) -> None:
    one_lands(make, [committer.write] * THREADS, store)


@pytest.mark.parametrize("make", KINDS)
def test_of_two_stores_one_makes_and_one_changes_it(store: Store, other_store: Store, make: Make) -> None:
    one_lands(make, [lambda unit: write(store, unit), lambda unit: write(other_store, unit)], store)
