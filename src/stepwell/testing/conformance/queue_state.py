"""A tier's ``state_bytes``: how much scoped state a workspace may hold, over all its scopes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import Raw

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import LimitExceeded
from stepwell.model.commit import StateBatch, Written
from stepwell.model.queue_item import PutTier, PutWorkspace, Tier, Workspace
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, Copy, Delete, Put, StateOp
from stepwell.model.value import canonical
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.sample import HOUR, SampleExecution, landed, refused, write

MOST = 100
OWN = Scope.of_workspace("acme").path
TALK = Scope.of_conversation("c/1", "acme").path
FOREIGN = Scope.of_workspace("acme2").path


def put(key: str, size: int, scope: str = OWN, ttl_ms: int | None = None) -> Put:
    """Set a key so that key and value are so many bytes together."""
    return Put(scope, key, Raw(canonical("x" * (size - len(key) - 2))), ttl_ms)


def limit(store: Store, state_bytes: int | None, workspace: str = "acme") -> None:
    """Put a workspace into a tier of its own with this limit."""
    landed(write(store, PutTier(Tier(name=f"of-{workspace}", state_bytes=state_bytes))))
    landed(write(store, PutWorkspace(Workspace(workspace_id=workspace, tier=f"of-{workspace}"))))


def accept(store: Store, *ops: StateOp) -> None:
    landed(write(store, StateBatch(ops)))


def refuse(store: Store, *ops: StateOp) -> LimitExceeded:
    return refused(write(store, StateBatch(ops)), LimitExceeded)


def held(store: Store) -> int:
    return sum(store.totals(path).bytes for path in store.scopes("acme"))


def test_workspace_holds_no_more_state_than_its_tier_allows(store: Store) -> None:
    """All its scopes count together, and what is over the limit is refused before anything is written."""
    limit(store, MOST)
    accept(store, put("a", 60), put("b", 40, TALK))
    refusal = refuse(store, put("c", 4))
    assert (refusal.limit, refusal.maximum, refusal.actual) == ("state_bytes", MOST, MOST + 4)
    refuse(store, put("c", 4, Scope.custom("new", "acme").path))
    refuse(store, put("a", 61), put("x", 10, FOREIGN))
    assert held(store) == MOST
    assert (store.entries(OWN, ["c"]), store.entries(FOREIGN, ["x"])) == ({}, {})
    accept(store, put("x", 1_000, FOREIGN))


def test_state_of_before_the_limit_counts(store: Store) -> None:
    accept(store, put("a", 60), put("b", 30, TALK))
    limit(store, MOST)
    refuse(store, put("c", 11))
    accept(store, put("c", 10))


def test_limit_of_state_is_effective_at_once(store: Store) -> None:
    limit(store, MOST)
    accept(store, put("a", 90))
    refuse(store, put("b", 20))
    limit(store, 110)
    accept(store, put("b", 20))
    limit(store, None)
    accept(store, put("c", 500, TALK), Delete(OWN, "b"))
    limit(store, 600)
    accept(store, put("b", 10))
    refuse(store, put("b", 11))
    landed(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="unlimited"))))
    accept(store, put("b", 1_000))
    landed(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="of-acme"))))
    refuse(store, put("a", 91))


def test_workspace_that_is_over_its_limit_can_be_tidied_up(store: Store) -> None:
    accept(store, put("a", 150), put("b", 50, TALK))
    limit(store, MOST)
    accept(store, put("a", 140))
    accept(store, Copy(OWN, "a", TALK, "z", move=True))
    refuse(store, put("a", 5))
    accept(store, Delete(TALK, "z"))
    accept(store, put("a", 50))
    refuse(store, put("a", 51))
    accept(store, Clear(TALK), put("a", 100))
    assert held(store) == MOST


def test_expired_state_makes_room(store: Store, clock: FakeClock) -> None:
    limit(store, MOST)
    accept(store, put("a", 80, ttl_ms=1_000))
    refuse(store, put("b", 30))
    clock.advance(HOUR)
    accept(store, put("b", 30))
    refuse(store, put("a", 71))
    assert held(store) == 30


def test_own_writes_of_stepwell_count_and_are_never_refused(store: Store) -> None:
    limit(store, MOST)
    accept(store, put("a", 90, Scope("inbox", "acme", ("run",)).path), put("b", 90, Scope("schedule", "acme").path))
    refuse(store, put("c", 5))


def test_commit_over_the_limit_of_state_does_not_land(store: Store, execution: SampleExecution) -> None:
    limit(store, MOST)
    refused(write(store, execution.commit(ops=(put("a", 101),))), LimitExceeded)
    landed(write(store, execution.commit(ops=(put("a", 100),))))
    assert held(store) == MOST


def test_units_of_one_group_share_the_room(store: Store) -> None:
    limit(store, MOST)
    batches = [StateBatch((put("a", 60),)), StateBatch((put("b", 60, TALK),)), StateBatch((put("c", 40, TALK),))]
    first, second, third = store.write(batches)
    landed(first)
    refused(second, LimitExceeded)
    landed(third)
    assert held(store) == MOST


@pytest.mark.parametrize("workspace", ["a%", "ж/1", "a b"])
def test_limit_of_state_holds_whatever_the_workspace_is_called(store: Store, workspace: str) -> None:
    limit(store, MOST, workspace)
    refuse(store, put("a", 101, Scope.of_workspace(workspace).path))
    accept(store, put("a", 100, Scope.of_workspace(workspace).path))


def test_processes_share_the_room(store: Store, other_store: Store) -> None:
    limit(store, MOST)
    accept(store, put("a", 60))
    refuse(other_store, put("b", 41, TALK))
    accept(other_store, put("b", 40, TALK))
    refuse(store, put("a", 61))
    limit(other_store, MOST + 1)
    accept(store, put("a", 61))


def test_writers_at_once_never_take_more_than_there_is(store: Store, open_store: OpenStore) -> None:
    """Each in a scope of its own, so that nothing but the workspace's room keeps them apart."""
    limit(store, 20 * MOST)
    stores = [store] if not store.capabilities().is_shared else [store, open_store(), open_store(), open_store()]

    def fill(writer: int) -> None:
        for number in range(20):
            outcome = write(stores[writer], StateBatch((put(f"{number:02}", MOST, Scope.custom(str(writer), "acme").path),)))
            assert isinstance(outcome, Written | LimitExceeded)

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(fill, range(len(stores))))
    assert held(store) == 20 * MOST
