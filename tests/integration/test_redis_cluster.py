"""A Redis cluster of two nodes: what is on different nodes works, and what would need both at once is refused."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest
from tests.support.redis_server import RedisCluster

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery
from stepwell.errors import InvalidInput, LeaseLost, LockHeld, StoreUnavailable
from stepwell.model.commit import Acquire, Archiving, ClaimDue, Deletion, LockGuard, StateBatch, Sweep, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, Increment
from stepwell.stores.redis.keys import Keys, slot_of
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    acquire,
    answers,
    claim,
    content,
    landed,
    put,
    refused,
    status,
    walk,
    write,
    write_state,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: RedisCluster) -> str:
    return cluster.nodes[0].url()


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[RedisStore]:
    store = RedisStore(url, clock, Limits())
    store.open()
    yield store
    store.close()


def keys_of(url: str) -> Keys:
    return Keys(url.rpartition("prefix=")[2])


def on_node(keys: Keys, node: int, name: str = "run") -> str:
    """The id of an execution that is on one of the two nodes."""
    return next(each for each in (f"{name}-{n}" for n in range(100)) if slot_of(keys.execution(each).head) // 8192 == node)


def test_executions_are_spread_over_the_nodes_and_listed_together(store: RedisStore, cluster: RedisCluster, url: str) -> None:
    executions = [SampleExecution(store, f"run-{number:02}", workspace=f"w{number % 2}") for number in range(20)]
    outcomes = store.write([execution.foresee() for execution in executions])
    assert [type(each) for each in outcomes] == [Written] * 20
    assert {slot_of(keys_of(url).execution(execution.id).head) // 8192 for execution in executions} == {0, 1}
    for execution in executions[:5]:
        execution.land(status("RUNNING"))
        assert walk(store, execution.id).receipts == 2
    names = [execution.id for execution in reversed(executions)]
    assert [head.execution_id for head in store.find(ExecutionQuery())] == names
    assert [head.execution_id for head in store.find(ExecutionQuery(status="RUNNING", limit=3))] == names[15:18]
    assert [head.execution_id for head in store.find(ExecutionQuery(workspace_id="w1"))] == names[::2]


def test_deleted_execution_is_not_listed(store: RedisStore) -> None:
    for name in ("gone", "here"):
        SampleExecution(store, name).create()
    landed(write(store, Deletion("gone")))
    assert [head.execution_id for head in store.find(ExecutionQuery())] == ["here"]


@pytest.mark.parametrize("node", [0, 1])
def test_execution_lives_its_life_on_its_node(store: RedisStore, url: str, node: int) -> None:
    execution = SampleExecution(store, on_node(keys_of(url), node)).create()
    lease = claim(store, execution.id)
    execution.land(fence=lease.fence)
    refused(write(store, execution.commit(fence=lease.fence + 1)), LeaseLost)
    landed(write(store, Archiving(execution.id, execution.snapshot())))
    execution.land(fence=lease.fence)
    loaded = store.load(execution.id)
    assert loaded is not None
    assert (loaded.head.revision, loaded.head.base_revision, walk(store, execution.id).ok) == (2, 1, True)


def test_scopes_are_written_and_listed_wherever_they_are(store: RedisStore) -> None:
    paths = [Scope.custom(f"n{number}", "acme").path for number in range(8)]
    for path in paths:
        write_state(store, put("a", scope=path), Increment(path, "n", 3))
    assert list(store.scopes("acme")) == sorted(paths)
    assert list(store.scopes()) == sorted(paths)
    assert all(content(store, path) == {"a": 1, "n": 3} for path in paths)


def test_units_of_one_group_build_on_each_other_across_nodes(store: RedisStore) -> None:
    paths = [Scope.custom(f"n{number}", "acme").path for number in range(6)]
    outcomes = store.write([StateBatch((Increment(path, "n"),)) for path in paths * 3])
    assert [answers(outcome) for outcome in outcomes] == [[1]] * 6 + [[2]] * 6 + [[3]] * 6


@pytest.mark.parametrize("kind", ["commit with state", "two scopes", "guarded state"])
def test_unit_that_needs_two_nodes_is_refused_and_nothing_is_written(store: RedisStore, kind: str) -> None:
    execution = SampleExecution(store, "run").create()
    lock = acquire(store)
    unit = {
        "commit with state": execution.commit(ops=(put("k"),)),
        "two scopes": StateBatch((put("k"), put("k", scope=Scope.custom("elsewhere", "acme").path))),
        "guarded state": StateBatch((put("k"),), (LockGuard("door", lock.fence),)),
    }[kind]
    refusal, other = store.write([unit, execution.foresee()])
    assert "single Redis server or PostgreSQL" in str(refused(refusal, InvalidInput))
    landed(other)
    assert (content(store), list(store.scopes()), execution.head.revision) == ({}, [], 1)


def test_workers_are_told_to_use_a_single_server(store: RedisStore) -> None:
    refusal = refused(write(store, ClaimDue(("orders",), "worker", HOUR, 5)), InvalidInput)
    assert "single Redis server" in str(refusal)


def test_lock_has_one_holder_and_rising_fences(store: RedisStore, clock: FakeClock) -> None:
    fences: list[int] = []
    for holder in ("a", "b", "c"):
        lease = acquire(store, holder=holder)
        refused(write(store, Acquire("door", "other", HOUR)), LockHeld)
        fences.append(lease.fence)
        if holder == "a":
            landed(write(store, Unlock("door", "a", lease.fence)))
        clock.advance(2 * HOUR)
    assert fences == sorted(set(fences))


def test_what_has_ended_is_swept_on_every_node(store: RedisStore, clock: FakeClock, cluster: RedisCluster) -> None:
    paths = [Scope.custom(f"n{number}", "acme").path for number in range(6)]
    for path in paths:
        write_state(store, put("k", scope=path, ttl=60), put("stays", scope=path))
    clock.advance(HOUR)
    assert answers(write(store, Sweep(0))) == [6]
    assert answers(write(store, Sweep(0))) == [0]
    assert [len(store.changes(path, 0)) for path in paths] == [1] * 6
    write_state(store, Clear(paths[0]))
    clock.advance(HOUR)
    landed(write(store, Sweep(0)))
    assert list(store.scopes()) == sorted(paths[1:])


def test_listener_hears_what_is_written_on_any_node(store: RedisStore, url: str, clock: FakeClock) -> None:
    other, topics = RedisStore(url, clock, Limits()), queue.Queue[str]()
    other.open()
    end = store.listen(topics.put)
    assert topics.get(timeout=60) == ""
    write_state(other, put("k"))
    assert topics.get(timeout=60) == "state"
    end()
    other.close()


def test_slot_that_moved_to_the_other_node_is_followed(store: RedisStore, cluster: RedisCluster, url: str) -> None:
    keys = keys_of(url)
    name = on_node(keys, 0, "moving")
    with cluster.nodes[0].client() as first, cluster.nodes[1].client() as second:
        owner = second.execute_command("CLUSTER", "MYID")
        for client in (second, first):
            client.execute_command("CLUSTER", "SETSLOT", slot_of(keys.execution(name).head), "NODE", owner)
        SampleExecution(store, name).create().land()
        assert second.exists(keys.execution(name).head)
        assert walk(store, name).receipts == 2
        # Once it knows, it does not ask the wrong node again.
        first.config_resetstat()
        assert store.head(name) is not None
        assert "cmdstat_hgetall" not in first.info("commandstats")


def test_key_of_a_slot_that_is_on_its_way_is_asked_for_at_both_ends(store: RedisStore, cluster: RedisCluster, url: str) -> None:
    keys = keys_of(url)
    name = on_node(keys, 0, "leaving")
    slot = slot_of(keys.execution(name).head)
    with cluster.nodes[0].client() as first, cluster.nodes[1].client() as second:
        ids = [client.execute_command("CLUSTER", "MYID") for client in (first, second)]
        second.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        first.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        assert store.head(name) is None
        assert second.info("commandstats")["cmdstat_asking"]["calls"] > 0
        for client in (first, second):
            client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        SampleExecution(store, name).create()
        assert store.head(name) is not None


def test_database_other_than_the_first_is_refused(url: str, clock: FakeClock) -> None:
    with pytest.raises(StoreUnavailable, match="database 0 only"):
        RedisStore(url.replace("/0?", "/1?"), clock, Limits()).open()


def test_health_check_looks_at_every_node(store: RedisStore) -> None:
    store.check()
    assert store.durability().level == "none"


def test_node_that_is_down_is_named_and_the_other_goes_on(
    store: RedisStore, cluster: RedisCluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.stores.redis.servers._LOOKS", 3)
    here, away = (SampleExecution(store, on_node(keys_of(url), node, "late")).create() for node in (0, 1))
    with cluster.without(1):
        with pytest.raises(StoreUnavailable, match=str(cluster.nodes[1].port)):
            store.head(away.id)
        with pytest.raises(StoreUnavailable):
            store.check()
        assert here.head.revision == 0
    assert store.head(away.id) is None, "it had no persistence"
