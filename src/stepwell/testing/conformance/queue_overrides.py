"""Overrides: another value for a limit of one workspace's tier, which ends by itself by the store's clock."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LimitExceeded
from stepwell.model.commit import Outcome, StateBatch
from stepwell.model.queue_item import Override, PutWorkspace, ReturnItem, Workspace
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Put
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    added,
    claim_items,
    give_back,
    ids_of,
    landed,
    new_item,
    put_workspace,
    refused,
    write,
)


def override(store: Store, limit: str, value: float | None, *, seconds: float = HOUR, reason: str = "") -> Workspace:
    """Give the workspace ``acme`` another limit for a while; the workspace as it is stored."""
    before = next(each for each in store.workspaces() if each.workspace_id == "acme")
    now = store.now_ms()
    made = Override(value=value, until_ms=now + round(seconds * 1000), reason=reason, since_ms=now)
    put = PutWorkspace(
        Workspace(workspace_id="acme", tier=before.tier, is_paused=before.is_paused, overrides=before.overrides | {limit: made}),
        before,
    )
    landed(write(store, put))
    return next(each for each in store.workspaces() if each.workspace_id == "acme")


def put_bytes(store: Store, key: str, size: int) -> Outcome:
    """Write a text of so many bytes to the state of ``acme``."""
    text = b'"' + b"x" * (size - 2 - len(key)) + b'"'
    return write(store, StateBatch((Put(Scope.of_workspace("acme").path, key, Raw(text)),)))


def test_override_is_stored_with_its_end_and_reason(store: Store) -> None:
    put_workspace(store, "acme", concurrency=1)
    override(store, "weight", 0.1 + 0.2, reason='the "launch" of März')
    kept = override(store, "state_bytes", None)
    assert kept.overrides["weight"].value == 0.1 + 0.2
    assert kept.overrides["weight"].reason == 'the "launch" of März'
    assert kept.overrides["state_bytes"].value is None
    assert set(kept.overrides) == {"weight", "state_bytes"}


def test_change_based_on_other_overrides_is_refused(store: Store) -> None:
    put_workspace(store, "acme")
    before = next(each for each in store.workspaces() if each.workspace_id == "acme")
    override(store, "concurrency", 3)
    refused(write(store, PutWorkspace(before, before)), Conflict)
    assert "concurrency" in next(each for each in store.workspaces() if each.workspace_id == "acme").overrides


def test_concurrency_is_overridden_until_the_end(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme", concurrency=1)
    add(store, *(new_item(name, "acme") for name in "abcdef"))
    override(store, "concurrency", 3)
    assert ids_of(claim_items(store, seconds=10 * HOUR)) == ["a", "b", "c"]
    override(store, "concurrency", 5)
    clock.advance(HOUR + 1)
    assert claim_items(store) == []


def test_claim_of_several_lanes_uses_overrides(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme", concurrency=1)
    put_workspace(store, "other", concurrency=1)
    override(store, "concurrency", 2)
    add(
        store,
        *(new_item(name, "acme", queue=queue) for name, queue in (("a", "x"), ("b", "y"), ("c", "x"))),
        new_item("o", "other"),
    )
    claimed = claim_items(store, seconds=10 * HOUR)
    assert sorted(ids_of(claimed)) == ["a", "b", "o"]
    for item in claimed:
        give_back(store, item)
    clock.advance(HOUR + 1)
    assert sorted(ids_of(claim_items(store))) == ["a", "o"]


def test_override_to_no_limit_lifts_the_limit(store: Store) -> None:
    put_workspace(store, "acme", concurrency=1, queue_depth=1)
    override(store, "concurrency", None)
    override(store, "queue_depth", None)
    add(store, *(new_item(name, "acme") for name in "abc"))
    assert ids_of(claim_items(store)) == ["a", "b", "c"]


@pytest.mark.parametrize("is_plain", [True, False])
def test_queue_depth_is_overridden_until_the_end(store: Store, clock: FakeClock, *, is_plain: bool) -> None:
    named: dict[str, Any] = {} if is_plain else {"singleton": "s"}
    put_workspace(store, "acme")
    override(store, "queue_depth", 1)
    add(store, new_item("a", "acme"))
    assert refused(added(store, new_item("b", "acme", **named))[0], LimitExceeded).limit == "queue_depth"
    clock.advance(HOUR + 1)
    add(store, new_item("b", "acme", **named))


def test_depth_of_a_commits_items_is_overridden(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    override(store, "queue_depth", 0)
    execution = SampleExecution(store).create()
    refused(write(store, execution.commit(items=(new_item("a", "acme"),))), LimitExceeded)
    clock.advance(HOUR + 1)
    execution.land(items=(new_item("a", "acme"),))


def test_slots_of_started_executions_are_overridden(store: Store) -> None:
    put_workspace(store, "acme", concurrency=1)
    override(store, "concurrency", 2)
    execution = SampleExecution(store).create()
    for name in "ab":
        execution.land(items=(new_item(name, "acme", is_started=True),))
    refused(write(store, execution.commit(items=(new_item("c", "acme", is_started=True),))), LimitExceeded)


def test_rate_is_overridden_until_the_end(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    override(store, "rate_per_second", 0)
    add(store, *(new_item(name, "acme") for name in "ab"))
    assert claim_items(store) == []
    clock.advance(HOUR + 1)
    assert ids_of(claim_items(store)) == ["a", "b"]


def test_start_is_given_back_to_an_overriding_rate(store: Store) -> None:
    put_workspace(store, "acme")
    override(store, "rate_per_second", 0.001)
    add(store, new_item("a", "acme"), new_item("b", "acme"))
    [claimed] = claim_items(store)
    assert claim_items(store) == []
    landed(write(store, ReturnItem("a", claimed.fence)))
    assert ids_of(claim_items(store)) == ["a"]


def test_state_bytes_are_overridden_until_the_end(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme", state_bytes=100)
    landed(put_bytes(store, "a", 100))
    refused(put_bytes(store, "b", 10), LimitExceeded)
    override(store, "state_bytes", 200)
    landed(put_bytes(store, "b", 90))
    assert refused(put_bytes(store, "c", 20), LimitExceeded).maximum == 200
    clock.advance(HOUR + 1)
    assert refused(put_bytes(store, "d", 5), LimitExceeded).maximum == 100


def test_state_limited_for_a_while_is_counted_from_what_is_there(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    landed(put_bytes(store, "a", 100))
    override(store, "state_bytes", 150)
    landed(put_bytes(store, "b", 40))
    refused(put_bytes(store, "c", 20), LimitExceeded)
    clock.advance(HOUR + 1)
    landed(put_bytes(store, "c", 100))
    override(store, "state_bytes", 245)
    refused(put_bytes(store, "d", 10), LimitExceeded)
    landed(put_bytes(store, "d", 5))


def test_overrides_survive_reopening(open_store: OpenStore) -> None:
    first = open_store()
    if not first.capabilities().is_shared:
        pytest.skip("this store is not shared")
    put_workspace(first, "acme", concurrency=1)
    kept = override(first, "concurrency", 2)
    assert kept in open_store().workspaces()
