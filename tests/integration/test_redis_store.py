"""Writing to Redis: scripts that can be forgotten, groups and contention, and data that was damaged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from tests.support.redis_server import RedisServer
from tests.support.redis_server import RedisSite as Site

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery
from stepwell.errors import AlreadyExists, Corrupted, LeaseLost, LockHeld, NotFound
from stepwell.fault_points import armed
from stepwell.model.commit import (
    Archiving,
    Claim,
    Commit,
    Deletion,
    LockGuard,
    Seen,
    StateBatch,
    Written,
)
from stepwell.model.draft import Draft as DraftOfState
from stepwell.model.ids import new_commit_id
from stepwell.model.limits import Limits
from stepwell.model.mutation import Mutation
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Increment, StateOp, Touch
from stepwell.state.history import History
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.state_plan import StatePlan
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    answers,
    everything,
    landed,
    put,
    refused,
    status,
    variable,
    write,
    write_state,
)

# Scripts


def test_scripts_that_the_server_forgot_are_loaded_again(site: Site) -> None:
    execution = SampleExecution(site.store, "run").create()
    site.client.script_flush()
    landed(write(site.store, execution.foresee()))
    site.client.script_flush()
    assert len(site.store.history("run", -1, 10)) == 2


def test_forgotten_scripts_do_not_change_the_order_of_a_group(site: Site) -> None:
    execution = SampleExecution(site.store, "run").create()
    first, second = execution.foresee(), execution.foresee()
    site.client.script_flush()
    # The server still knows the script that claims, and not the one that commits: the claims land before the commits.
    site.client.script_load(SCRIPTS["claim"].text)
    outcomes = site.store.write([first, Claim("run", "a", 60), StateBatch((put("k"),)), second, first, Claim("run", "b", 60)])
    assert [type(each) for each in outcomes] == [Written, Written, Written, Written, Seen, LockHeld]


# The short path: plain commits


class Repeated(SampleExecution):
    """An execution whose commits have the same ids each time that its history is made."""

    def _build(self, mutations: Sequence[Mutation], fields: dict[str, Any]) -> tuple[DraftOfState, Commit]:
        own = {"commit_id": new_commit_id(self.state.revision + 1, "0" * 32), "is_named": "commit_id" in fields}
        return super()._build(mutations, {**own, **fields})


def plain_history(store: RedisStore) -> list[object]:
    """Commits alone and in groups, some of them refused or seen: what came of each, and what is stored then."""
    first, second, third = (Repeated(store, name).create() for name in ("one", "two", "three"))
    outcomes = store.write([first.foresee()])
    outcomes += store.write([first.foresee(signature=b"signed"), second.foresee(variable("n")), Repeated(store, "four").commit()])
    ahead = {"revision": 9, "commit_id": new_commit_id(9, "0" * 32), "is_named": False}
    for late in (first.commit(**ahead), first.commit(revision=9), first.commit(previous="0" * 64), first.commit(fence=4)):
        outcomes += store.write([late])
        outcomes += store.write([second.foresee(), late, third.foresee()])
    landed_twice = third.foresee()
    outcomes += [*store.write([landed_twice]), *store.write([landed_twice]), *store.write([first.foresee(), landed_twice])]
    outcomes += store.write([first.foresee(), second.foresee(commit_id="mine"), third.foresee(status("RUNNING"))])
    outcomes += store.write([second.commit(commit_id="mine")])
    outcomes += store.write([first.foresee(signature=b"last")])
    return [(type(each), str(each)) for each in outcomes] + [everything(store, each.id) for each in (first, second, third)]


def test_both_ways_to_commit_come_to_the_same_rows_and_outcomes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    short = plain_history(site.store)
    site.client.delete(*site.names())
    monkeypatch.setattr("stepwell.stores.redis.writer.is_fast", lambda _: False)
    long = plain_history(site.open())
    assert short == long
    assert {"Written", "Conflict", "NotFound", "LeaseLost", "Seen"} <= {each[0].__name__ for each in short if len(each) == 2}


def test_plain_commit_is_refused_by_a_store_that_lost_its_data(site: Site) -> None:
    """T19: a server that was flushed and has the execution again, from another process, is not the store that was opened."""
    commit = SampleExecution(site.store, "run").create().foresee()
    rows = {key: site.client.dump(key) for key in site.keys.execution("run")[:2]}
    site.client.delete(*site.names())
    site.open()
    for key, row in rows.items():
        site.client.restore(key, 0, row)
    with pytest.raises(Corrupted):
        raise write(site.store, commit)
    assert site.store.head_digests(["run"]) == [commit.previous]
    with pytest.raises(Corrupted):
        site.store.head_digests(["run", "nobody"])


def test_plain_commit_keeps_all_keys_of_its_execution_alive(site: Site) -> None:
    store = site.open(execution_ttl="6000")
    execution = SampleExecution(store, "run").create()
    execution.land(snapshot=execution.snapshot())
    keys = [key for key in site.keys.execution("run") if site.client.exists(key)]
    for key in keys:
        site.client.pexpire(key, 600_000)
    landed(write(store, execution.foresee()))
    assert all(site.client.pttl(key) > 5_000_000 for key in keys)


def test_plain_commit_of_a_holder_starts_the_count_of_claims_anew(site: Site) -> None:
    execution = SampleExecution(site.store, "run").create()
    for holder in ("a", "a"):
        [lease] = answers(write(site.store, Claim("run", holder, 60)))
    assert execution.head.claims == 2
    execution.land(fence=lease.fence)
    assert (execution.head.claims, execution.head.fence) == (0, lease.fence)


# Groups and contention


def test_unit_that_builds_on_one_that_did_not_land_is_worked_out_again(site: Site) -> None:
    """The second batch was planned as if the first had landed; its lock is lost, so it did not."""
    lost = (LockGuard("door", 7),)
    outcomes = site.store.write(
        [
            StateBatch((put("k", 1),), lost),
            StateBatch((Increment(SCOPE, "k", 5),)),
            StateBatch((put("new", 1, expected=0),)),
            StateBatch((put("k", 3, expected=1),)),
        ]
    )
    refused(outcomes[0], LeaseLost)
    assert answers(outcomes[1]) == [5]
    assert [entry.revision for entry in answers(outcomes[2])] == [2]
    assert [entry.revision for entry in answers(outcomes[3])] == [3]


def test_refusal_that_builds_on_a_unit_that_did_not_land_is_worked_out_again(site: Site) -> None:
    outcomes = site.store.write([StateBatch((put("k"),), (LockGuard("door", 7),)), StateBatch((put("k", 2, expected=0),))])
    assert [type(each) for each in outcomes] == [LeaseLost, Written]
    assert site.store.entries(SCOPE, ["k"])["k"].data == b"2"


def test_limit_that_a_unit_would_have_reached_which_did_not_land_refuses_nobody(site: Site) -> None:
    store = site.open(Limits(scope_keys=1))
    outcomes = store.write([StateBatch((put("k"),), (LockGuard("door", 7),)), StateBatch((put("other"),))])
    assert [type(each) for each in outcomes] == [LeaseLost, Written]


def test_counter_counts_every_increment_of_processes_that_contend_for_it(site: Site) -> None:
    stores = [site.store, *(site.open() for _ in range(3))]

    def count(store: RedisStore) -> None:
        for _ in range(25):
            landed(write(store, StateBatch((Increment(SCOPE, "n"),))))

    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.store.entries(SCOPE, ["n"])["n"].data == b"100"
    assert site.store.totals(SCOPE).revision == 100


def test_write_is_worked_out_again_if_a_touch_came_between_its_reading_and_its_script(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sliding TTL started anew leaves the revision as it is, and is a change all the same."""
    other = site.open()
    write_state(site.store, put("k", ttl=3 * HOUR, sliding=True))
    read, reads = StatePlan.read, list[StatePlan]()

    def read_and_race(self: StatePlan, ops: Iterable[StateOp]) -> None:
        read(self, ops)
        reads.append(self)
        if len(reads) == 1:
            assert write_state(other, Touch(SCOPE, "k")) == [True]

    monkeypatch.setattr(StatePlan, "read", read_and_race)
    assert write_state(site.store, Increment(SCOPE, "k")) == [2]
    assert len(reads) == 3, "one for the touch, and two for the increment"


def test_commit_that_follows_one_that_is_planned_again_is_not_refused_meanwhile(site: Site) -> None:
    """Another process wrote between the plan of the first and its script."""
    other = site.open()
    execution = SampleExecution(site.store, "run").create()
    first, second = execution.foresee(ops=(Increment(SCOPE, "k"),)), execution.foresee()
    races = [Increment(SCOPE, "k", 10)]

    def race(point: str) -> None:
        if point == "store.before_commit" and races:
            write_state(other, races.pop())

    with armed(race):
        outcomes = site.store.write([first, second])
    assert [type(each) for each in outcomes] == [Written, Written]
    assert (execution.head.revision, site.store.entries(SCOPE, ["k"])["k"].data) == (2, b"11")


def test_unit_that_follows_one_that_is_planned_again_waits_for_it(site: Site) -> None:
    """Else an execution is deleted before a commit of it that came first."""
    other = site.open()
    execution = SampleExecution(site.store, "run").create()
    races = [Increment(SCOPE, "k", 10)]

    def race(point: str) -> None:
        if point == "store.before_commit" and races:
            write_state(other, races.pop())

    with armed(race):
        outcomes = site.store.write([execution.foresee(ops=(Increment(SCOPE, "k"),)), Deletion("run")])
    assert [type(each) for each in outcomes] == [Written, Written]
    assert (site.store.head("run"), site.store.entries(SCOPE, ["k"])["k"].data) == (None, b"11")


def test_each_scope_is_listed_once_over_many_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.stores.redis.reads._PAGE", 2)
    paths = sorted(Scope.of_workflow(f"w{number}", "acme").path for number in range(5))
    for path in paths:
        write_state(site.store, put("k", scope=path))
    assert sorted(site.store.scopes("acme")) == sorted(site.store.scopes()) == paths


# Commits


def test_id_of_a_user_that_looks_like_one_of_ours_is_seen_at_any_revision(site: Site) -> None:
    execution = SampleExecution(site.store, "run").create()
    at_its_own, elsewhere = execution.foresee(commit_id=f"r1.{'a' * 32}"), execution.foresee(commit_id=f"r1.{'b' * 32}")
    assert [type(each) for each in site.store.write([at_its_own, elsewhere])] == [Written, Written]
    later = execution.commit(variable("n", 1))
    for commit in (at_its_own, elsewhere):
        again = Commit(**{**{name: getattr(later, name) for name in later.__struct_fields__}, "commit_id": commit.commit_id})
        assert write(site.store, again) == Seen(commit.header, commit.body)
        row = site.store.commit_of("run", commit.commit_id)
        assert row is not None
        assert row.revision == commit.revision


def test_ordinary_commit_needs_no_entry_for_its_id(site: Site) -> None:
    execution = SampleExecution(site.store, "run").create()
    execution.land()
    assert not site.client.exists(site.keys.execution("run").ids)
    execution.land(commit_id="mine")
    assert site.client.zrange(site.keys.execution("run").ids, 0, -1) == [b"mine"]


# Damage


@pytest.mark.parametrize("part", ["head", "commits", "snapshots"])
def test_execution_that_lost_a_part_is_quarantined_and_never_made_anew(site: Site, part: str) -> None:
    """T17: others are not affected."""
    execution, other = SampleExecution(site.store, "run").create(), SampleExecution(site.store, "other").create()
    execution.land()
    write(site.store, Archiving("run", execution.snapshot()))
    execution.land()
    site.client.delete(getattr(site.keys.execution("run"), part))
    if part == "snapshots":
        assert site.store.base("run") is None
    else:
        refused(write(site.store, execution.commit()), Corrupted)
    creation = write(site.store, SampleExecution(site.store, "run").creation())
    assert isinstance(creation, Corrupted if part == "head" else AlreadyExists)
    landed(write(site.store, other.commit()))


@pytest.mark.parametrize(
    ("part", "value"),
    [("revision", "x"), ("fence", ""), ("created", "\xff"), ("workspace", b"\xff")],
)
def test_head_that_cannot_be_read_is_reported_as_damage(site: Site, part: str, value: str | bytes) -> None:
    """T11, T59."""
    SampleExecution(site.store, "run").create()
    site.client.hset(site.keys.execution("run").head, part, value)
    with pytest.raises(Corrupted, match="run"):
        site.store.head("run")


@pytest.mark.parametrize("value", [b"", b"1", b"x - - f 1", b"\x80\x04\x95", b"- - - -"])
def test_row_that_cannot_be_read_is_reported_as_damage(site: Site, value: bytes) -> None:
    """T11, T59."""
    write(site.store, StateBatch((put("k"),)))
    site.client.hset(site.keys.scope(SCOPE).rows, "k", value)
    with pytest.raises(Corrupted, match="conformance"):
        site.store.entries(SCOPE, ["k"])


def test_commit_that_cannot_be_read_is_reported_as_damage(site: Site) -> None:
    """T11, T59."""
    SampleExecution(site.store, "run").create()
    site.client.lset(site.keys.execution("run").commits, 0, b"\x80\x04\x95junk")
    with pytest.raises(Corrupted, match="run"):
        site.store.load("run")


@pytest.mark.parametrize("part", ["head", "commits", "the base", "a snapshot"])
def test_what_cannot_be_read_is_a_problem_that_verifying_finds(site: Site, part: str) -> None:
    """T11: whoever verifies many executions gets an answer about each."""
    execution = SampleExecution(site.store, "run").create()
    execution.land()
    write(site.store, Archiving("run", execution.snapshot()))
    execution.land()
    execution.land(snapshot=execution.snapshot())
    keys = site.keys.execution("run")
    snapshots = site.client.zrange(keys.snapshots, 0, -1, withscores=True)
    match part:
        case "head":
            site.client.hset(keys.head, "revision", "x")
        case "commits":
            site.client.lset(keys.commits, 0, b"\x80\x04\x95junk")
        case _:
            member, score = snapshots[0 if part == "the base" else -1]
            site.client.zrem(keys.snapshots, member)
            site.client.zadd(keys.snapshots, {b"\x80\x04\x95junk": score})
    found = asked(History(site.store, Limits(), None).verify("run"))
    assert not found.ok
    assert "cannot be read" in found.problems[0]


def asked(operation: Any) -> Any:
    """Return the result of an operation that only reads."""
    effect = operation.send(None)
    while True:
        try:
            answer = effect.query()
        except Corrupted as error:
            send = partial(operation.throw, error)
        else:
            send = partial(operation.send, answer)
        try:
            effect = send()
        except StopIteration as end:
            return end.value


def test_flushed_server_is_not_taken_for_a_new_store(tmp_path_factory: pytest.TempPathFactory, clock: FakeClock) -> None:
    """T17: reads, writes and the health check say so, until the store is opened again."""
    with RedisServer(tmp_path_factory.mktemp("flushed")) as server:
        site = Site(server, server.url("mine"), clock)
        execution = SampleExecution(site.store, "run").create()
        site.client.delete(*site.names())
        late = execution.commit()
        refused(write(site.store, late), Corrupted)
        refused(write(site.store, SampleExecution(site.store, "run").creation()), Corrupted)
        reads: list[Callable[[], object]] = [
            lambda: write(site.store, StateBatch((put("k"),))),
            lambda: site.store.head("run"),
            lambda: site.store.entries(SCOPE, ["k"]),
            lambda: site.store.find(ExecutionQuery()),
            site.store.check,
        ]
        for read in reads:
            with pytest.raises(Corrupted, match="open the store again"):
                read()
        assert site.client.dbsize() == 0
        fresh = site.open()
        refused(write(fresh, late), NotFound)
        with pytest.raises(Corrupted):
            site.store.check()
        site.close()
