"""Clean-up in Redis: the TTL of executions, the index beside the data, and the sweep of ended executions."""

from __future__ import annotations

import pytest
from tests.support.redis_server import RedisSite as Site

from stepwell.contract.store import ExecutionQuery
from stepwell.errors import AlreadyExists, InvalidInput
from stepwell.model.commit import (
    Acquire,
    Archiving,
    Claim,
    Deletion,
    Extension,
    Renew,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, Delete
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    answers,
    claim,
    landed,
    put,
    refused,
    status,
    write,
    write_state,
)

# TTL of executions


def test_executions_have_no_end_unless_one_is_asked_for(site: Site) -> None:
    SampleExecution(site.store, "run").create().land()
    assert {site.client.pttl(key) for key in site.names()} == {-1}


@pytest.mark.parametrize("kind", ["commit", "claim", "extend", "archive"])
def test_every_write_starts_the_ttl_of_all_keys_of_an_execution_anew(site: Site, kind: str) -> None:
    store = site.open(execution_ttl=1000)
    execution = SampleExecution(store, "run").create()
    execution.land(commit_id="mine")
    lease = claim(store, "run")
    keys = site.keys.execution("run")
    for key in keys:
        site.client.pexpire(key, 500_000)
    units: dict[str, Unit] = {
        "commit": execution.commit(),
        "claim": Claim("run", "a", 60),
        "extend": Extension("run", "a", lease.fence, 60),
        "archive": Archiving("run", execution.snapshot()),
    }
    landed(write(store, units[kind]))
    left = [site.client.pttl(key) for key in keys if site.client.exists(key)]
    assert len(left) == 3  # ids that users chose stay when commits are archived
    assert all(800_000 < each <= 1_000_000 for each in left)


def test_execution_whose_ttl_ended_is_gone_and_its_places_are_forgotten_by_a_sweep(site: Site) -> None:
    store = site.open(execution_ttl=1000)
    SampleExecution(store, "gone").create()
    SampleExecution(store, "here").create()
    for key in site.keys.execution("gone"):
        site.client.pexpire(key, 0)
    assert store.head("gone") is None
    assert [head.execution_id for head in store.find(ExecutionQuery())] == ["here"]
    assert site.client.zcard(site.keys.executions) == 6
    landed(write(store, Sweep(0)))
    assert site.client.zcard(site.keys.executions) == 3
    assert [head.execution_id for head in store.find(ExecutionQuery(status="PENDING"))] == ["here"]


def test_deleted_execution_leaves_a_tombstone_with_the_same_ttl(site: Site) -> None:
    store = site.open(execution_ttl=1000)
    SampleExecution(store, "run").create()
    landed(write(store, Deletion("run")))
    refused(write(store, SampleExecution(store, "run").creation()), AlreadyExists)
    assert site.client.hkeys(site.keys.execution("run").head) == [b"deleted"]
    assert 0 < site.client.pttl(site.keys.execution("run").head) <= 1_000_000


# The index


def places(site: Site) -> list[bytes]:
    return site.client.zrange(site.keys.executions, 0, -1)


def test_execution_has_one_place_by_age_by_workspace_and_by_status(site: Site) -> None:
    execution = SampleExecution(site.store, "run").create()
    assert [place[:9] for place in places(site)] == [b"a/1001767", b"s/PENDING", b"w/4:acme1"]
    execution.land(status("RUNNING"))
    assert [place[:9] for place in places(site)] == [b"a/1001767", b"s/RUNNING", b"w/4:acme1"]
    landed(write(site.store, Deletion("run")))
    assert places(site) == []


def test_listing_walks_past_many_executions_that_do_not_match(site: Site) -> None:
    creations = [
        SampleExecution(site.store, f"run-{number:04}", workflow="rare" if number < 50 else "common").creation()
        for number in range(1_100)
    ]
    assert {type(each) for each in site.store.write(creations)} == {Written}
    found = site.store.find(ExecutionQuery(workflow_id="rare", limit=60))
    assert [head.execution_id for head in found] == [f"run-{number:04}" for number in range(49, -1, -1)]


# Sweeping


def test_sweep_leaves_nothing_of_what_has_ended(site: Site) -> None:
    """T26, T62: keys are back to what they were, but for the totals of the scope, which Redis forgets by itself."""
    write(site.store, StateBatch((put("stays"),)))
    before = site.names()
    other = Scope.custom("passing", "acme").path
    write_state(site.store, *(put(f"k{number}", scope=other, ttl=60) for number in range(20)))
    assert set(site.store.scopes("acme")) == {SCOPE, other}
    site.clock.advance(HOUR)
    assert answers(write(site.store, Sweep(60_000))) == [20]
    assert len(site.store.changes(other, 0)) == 20
    site.clock.advance(HOUR)
    assert answers(write(site.store, Sweep(60_000))) == [0]
    assert site.store.changes(other, 0) == []
    table = site.keys.scope(other).rows
    assert site.names() - before == {table}
    assert 0 < site.client.pttl(table) <= 30 * 24 * 3_600_000
    assert set(site.store.scopes("acme")) == {SCOPE}
    assert site.client.zcard(site.keys.ends) == site.client.zcard(site.keys.tombs) == 0


def test_scope_that_was_swept_empty_goes_on_with_its_revision_when_it_is_used_again(site: Site) -> None:
    write(site.store, StateBatch((put("k"), Delete(SCOPE, "k"))))
    site.clock.advance(HOUR)
    write(site.store, Sweep(0))
    assert list(site.store.scopes()) == []
    write(site.store, StateBatch((put("k"),)))
    assert site.store.entries(SCOPE, ["k"])["k"].revision == 3
    assert site.client.pttl(site.keys.scope(SCOPE).rows) == -1
    assert list(site.store.scopes()) == list(site.store.scopes("acme")) == [SCOPE]


def test_clearing_a_large_scope_buries_every_key(site: Site) -> None:
    store = site.open(Limits(scope_keys=20_000))
    write(store, StateBatch(tuple(put(f"k{number:05}") for number in range(9_000))))
    assert len(store.scan(SCOPE, limit=20_000)) == 9_000
    assert answers(write(store, StateBatch((Clear(SCOPE), put("k00001", 2)))))[0] == 9_000
    assert [key for key, _ in store.scan(SCOPE)] == ["k00001"]
    assert sum(row.data is None for _, row in store.changes(SCOPE, 0)) == 8_999


def test_lock_that_nobody_gives_back_is_forgotten_by_redis_itself(site: Site) -> None:
    """T25, T26: an orphan lock expires, and its row after it."""
    write(site.store, Acquire("door", "a", 10))
    left = site.client.pttl(site.keys.lock("door"))
    assert 10_000 < left <= 10_000 + 3_600_000
    site.clock.advance(HOUR)
    write(site.store, Sweep(0))
    assert site.keys.lock("door") not in site.names()
    assert site.client.zcard(site.keys.locks) == 0


def test_lock_that_was_given_back_leaves_no_key(site: Site) -> None:
    """T26."""
    before = site.names()
    for number in range(10):
        [lease] = answers(write(site.store, Acquire(f"door-{number}", "a", 10)))
        landed(write(site.store, Unlock(f"door-{number}", "a", lease.fence)))
    assert site.names() - before == {site.keys.fence} - before


@pytest.mark.parametrize("seconds", [0, -1, 0.0004, float("nan"), float("inf"), 1e12])
def test_lease_of_no_sensible_length_is_refused_before_redis_sees_it(site: Site, seconds: float) -> None:
    """T22: PEXPIRE with 0 would delete the lock and say that all is well."""
    SampleExecution(site.store, "run").create()
    [lock] = answers(write(site.store, Acquire("door", "a", 60)))
    [lease] = answers(write(site.store, Claim("run", "a", 60)))
    for unit in (
        Acquire("other", "a", seconds),
        Renew("door", "a", lock.fence, seconds),
        Claim("run", "a", seconds),
        Extension("run", "a", lease.fence, seconds),
    ):
        refused(write(site.store, unit), InvalidInput)
    landed(write(site.store, Renew("door", "a", lock.fence, 60)))
    landed(write(site.store, Extension("run", "a", lease.fence, 60)))
