"""Quotas of scoped state: a tier's ``state_keys``, ``workflow_state_bytes`` and ``workflow_state_keys``.

``queue_limits`` has the tests of ``state_bytes``, which they share their rules with.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import Raw

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LimitExceeded
from stepwell.model.commit import StateBatch, Written
from stepwell.model.queue_item import Override, PutTier, PutWorkspace, Tier, Workspace
from stepwell.model.scope import Scope, internal_path
from stepwell.model.scoped_operations import Clear, Copy, Delete, Put, StateOp
from stepwell.model.value import canonical
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.samples import HOUR, SampleExecution, landed, put_workspace, refused, write

OWN = Scope.of_workspace("acme").path
CHECKOUT = Scope.of_workflow("checkout", "acme").path
CHARGE = Scope.of_step("checkout", "charge", "acme").path
BESIDE = (
    Scope.of_workflow("checkout2", "acme").path,
    Scope.of_step("checkout2", "charge", "acme").path,
    Scope.of_workflow("checkout", "acme2").path,
    Scope.custom("checkout", "acme").path,
)
"""Scopes of others, whose paths are like those of the workflow."""

LIMITS = ("state_bytes", "state_keys", "workflow_state_bytes", "workflow_state_keys")


def set_key(scope: str, key: str, size: int = 10, ttl_ms: int | None = None) -> Put:
    """Set a key so that key and value are so many bytes together."""
    return Put(scope, key, Raw(canonical("x" * (size - len(key) - 2))), ttl_ms)


def limit_state(store: Store, limit: str, most: int) -> None:
    """Give ``acme`` a tier with one limit."""
    limits: dict[str, Any] = {limit: most}
    put_workspace(store, "acme", **limits)


def accept(store: Store, *ops: StateOp) -> None:
    landed(write(store, StateBatch(ops)))


def refuse(store: Store, *ops: StateOp) -> tuple[str | None, int | None, int | None]:
    """Expect a refusal: the limit, its maximum, and what there would have been."""
    refusal = refused(write(store, StateBatch(ops)), LimitExceeded)
    assert "acme" in str(refusal)
    return refusal.limit, refusal.maximum, refusal.actual


def used(store: Store, *scopes: str) -> tuple[int, int]:
    totals = [store.totals(path) for path in scopes]
    return sum(each.bytes for each in totals), sum(each.keys for each in totals)


def override(store: Store, limit: str, value: int | None) -> None:
    """Give ``acme`` another limit for an hour."""
    before = next(each for each in store.workspaces() if each.workspace_id == "acme")
    made = Override(value=value, until_ms=store.now_ms() + HOUR * 1000)
    after = Workspace(workspace_id="acme", tier=before.tier, overrides=before.overrides | {limit: made})
    landed(write(store, PutWorkspace(after, before)))


def test_limits_of_a_tier_are_stored(store: Store) -> None:
    before = Tier(name="acme", state_bytes=3, state_keys=4, workflow_state_bytes=5, workflow_state_keys=0)
    landed(write(store, PutTier(before, None)))
    assert before in store.tiers()
    after = Tier(name="acme", state_keys=40)
    refused(write(store, PutTier(after, after)), Conflict)
    landed(write(store, PutTier(after, before)))
    assert after in store.tiers()
    landed(write(store, PutTier(Tier(name="acme"), after)))
    assert Tier(name="acme") in store.tiers()


def test_workspace_has_no_more_keys_than_its_tier_allows(store: Store) -> None:
    """All its scopes count together, those of workflows and Stepwell's own among them."""
    put_workspace(store, "acme", state_keys=3)
    accept(store, set_key(OWN, "a"), set_key(CHECKOUT, "b"), set_key(internal_path("inbox", "acme", "run"), "c"))
    assert refuse(store, set_key(OWN, "d")) == ("state_keys", 3, 4)
    assert refuse(store, set_key(BESIDE[3], "d"), set_key(OWN, "e")) == ("state_keys", 3, 5)
    assert store.entries(OWN, ["d"]) == {}
    accept(store, set_key(OWN, "a", 100))
    accept(store, Delete(OWN, "a"), set_key(CHARGE, "d"))
    accept(store, set_key(Scope.of_workspace("acme2").path, "d"))


def test_workflow_holds_no_more_state_than_its_tier_allows(store: Store) -> None:
    """Its scope and those of its steps count together, and no others."""
    put_workspace(store, "acme", workflow_state_bytes=100)
    for scope in BESIDE:
        accept(store, set_key(scope, "a", 45))
    accept(store, set_key(CHECKOUT, "a", 60), set_key(CHARGE, "b", 40))
    assert refuse(store, set_key(CHARGE, "c", 4)) == ("workflow_state_bytes", 100, 104)
    assert refuse(store, set_key(BESIDE[0], "b", 11)) == ("workflow_state_bytes", 100, 101)
    accept(store, set_key(BESIDE[0], "b", 10), set_key(OWN, "a", 1_000))
    accept(store, Copy(CHECKOUT, "a", CHARGE, "z", move=True))
    accept(store, Clear(CHARGE), set_key(CHECKOUT, "c", 100))
    assert used(store, CHECKOUT, CHARGE) == (100, 1)


def test_workflow_has_no_more_keys_than_its_tier_allows(store: Store) -> None:
    put_workspace(store, "acme", workflow_state_keys=2)
    accept(store, set_key(CHECKOUT, "a"), set_key(CHARGE, "b"))
    assert refuse(store, set_key(CHARGE, "c")) == ("workflow_state_keys", 2, 3)
    accept(store, *(set_key(scope, "a") for scope in BESIDE))
    accept(store, *(set_key(OWN, key) for key in "abc"))


@pytest.mark.parametrize(("limit", "most"), [("state_keys", 2), ("workflow_state_keys", 2), ("workflow_state_bytes", 20)])
def test_state_of_before_a_limit_counts(store: Store, limit: str, most: int) -> None:
    accept(store, set_key(CHECKOUT, "a"), *(set_key(scope, "a") for scope in BESIDE[:3]))
    limit_state(store, limit, most + (1 if limit == "state_keys" else 0) * 2)
    accept(store, set_key(CHARGE, "b"))
    assert refuse(store, set_key(CHARGE, "c"))[0] == limit


@pytest.mark.parametrize(("limit", "most"), [("state_keys", 1), ("workflow_state_keys", 1), ("workflow_state_bytes", 10)])
def test_limit_is_overridden_until_the_end(store: Store, clock: FakeClock, limit: str, most: int) -> None:
    limit_state(store, limit, most)
    accept(store, set_key(CHECKOUT, "a"))
    refuse(store, set_key(CHARGE, "b"))
    override(store, limit, 2 * most)
    accept(store, set_key(CHARGE, "b"))
    assert refuse(store, set_key(CHARGE, "c"))[:2] == (limit, 2 * most)
    clock.advance(HOUR + 1)
    assert refuse(store, set_key(CHARGE, "c"))[:2] == (limit, most)
    override(store, limit, None)
    accept(store, set_key(CHARGE, "c"))


@pytest.mark.parametrize("limit", LIMITS)
def test_workspace_without_a_limit_can_get_one_for_a_while(store: Store, clock: FakeClock, limit: str) -> None:
    put_workspace(store, "acme")
    accept(store, set_key(CHECKOUT, "a"))
    override(store, limit, 0)
    assert refuse(store, set_key(CHARGE, "b"))[:2] == (limit, 0)
    clock.advance(HOUR + 1)
    accept(store, set_key(CHARGE, "b"))


@pytest.mark.parametrize("limit", LIMITS)
def test_owner_over_a_lowered_limit_can_be_tidied_up(store: Store, limit: str) -> None:
    accept(store, set_key(CHECKOUT, "a", 90), set_key(CHARGE, "b", 90))
    limit_state(store, limit, 0)
    accept(store, set_key(CHECKOUT, "a", 80))
    accept(store, Copy(CHECKOUT, "a", CHARGE, "z", move=True))
    accept(store, Delete(CHARGE, "z"), Clear(CHARGE))
    refuse(store, set_key(CHECKOUT, "a", 5))


@pytest.mark.parametrize("limit", LIMITS)
def test_expired_state_makes_room_for_more(store: Store, clock: FakeClock, limit: str) -> None:
    limit_state(store, limit, 1 if limit.endswith("keys") else 10)
    accept(store, set_key(CHECKOUT, "a", ttl_ms=1_000))
    refuse(store, set_key(CHECKOUT, "b"))
    clock.advance(HOUR)
    accept(store, set_key(CHECKOUT, "b"))


@pytest.mark.parametrize("limit", ["state_keys", "workflow_state_bytes", "workflow_state_keys"])
def test_commit_over_a_limit_of_state_does_not_land(store: Store, execution: SampleExecution, limit: str) -> None:
    limit_state(store, limit, 1 if limit.endswith("keys") else 10)
    both = (set_key(CHECKOUT, "a"), set_key(CHARGE, "b"))
    assert refused(write(store, execution.commit(ops=both)), LimitExceeded).limit == limit
    landed(write(store, execution.commit(ops=both[:1])))
    assert used(store, CHECKOUT, CHARGE) == (10, 1)


@pytest.mark.parametrize("limit", ["state_keys", "workflow_state_keys"])
def test_units_of_one_group_share_the_keys(store: Store, limit: str) -> None:
    limit_state(store, limit, 2)
    batches = [
        StateBatch((set_key(scope, key),)) for scope, key in ((CHECKOUT, "a"), (CHARGE, "b"), (CHARGE, "c"), (CHECKOUT, "a"))
    ]
    first, second, third, again = store.write(batches)
    for outcome in (first, second, again):
        landed(outcome)
    refused(third, LimitExceeded)
    assert used(store, CHECKOUT, CHARGE) == (20, 2)


@pytest.mark.parametrize(("workspace", "workflow"), [("a%", "b/c"), ("ж/1", "ы%2F"), ("a b", "c d")])
def test_limits_hold_whatever_workspace_and_workflow_are_called(store: Store, workspace: str, workflow: str) -> None:
    own, step = Scope.of_workflow(workflow, workspace).path, Scope.of_step(workflow, "s/1", workspace).path
    accept(store, set_key(own, "a"), set_key(Scope.of_workflow(f"{workflow}2", workspace).path, "a"))
    landed(write(store, PutTier(Tier(name="small", state_keys=4, workflow_state_keys=2))))
    landed(write(store, PutWorkspace(Workspace(workspace_id=workspace, tier="small"))))
    accept(store, set_key(step, "b"))
    assert refused(write(store, StateBatch((set_key(own, "c"),))), LimitExceeded).limit == "workflow_state_keys"
    accept(store, set_key(Scope.of_workspace(workspace).path, "c"))
    assert (
        refused(write(store, StateBatch((set_key(Scope.of_user("u", workspace).path, "d"),))), LimitExceeded).limit == "state_keys"
    )


@pytest.mark.parametrize("limit", ["state_keys", "workflow_state_bytes", "workflow_state_keys"])
def test_writers_at_once_never_take_more_than_the_limit(store: Store, open_store: OpenStore, limit: str) -> None:
    """Each in the scope of a step of its own, so that nothing but the limit keeps them apart."""
    limit_state(store, limit, 20 if limit.endswith("keys") else 200)
    stores = [store] if not store.capabilities().is_shared else [store, open_store(), open_store(), open_store()]
    scopes = [Scope.of_step("checkout", str(number), "acme").path for number in range(len(stores))]

    def fill(writer: int) -> None:
        for number in range(20):
            outcome = write(stores[writer], StateBatch((set_key(scopes[writer], f"{number:02}"),)))
            assert isinstance(outcome, Written | LimitExceeded)

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(fill, range(len(stores))))
    assert used(store, *scopes) == (200, 20)
