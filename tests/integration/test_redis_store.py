"""What only the Redis store has: TTL of executions, scripts that can be forgotten, an index beside the data, pub/sub, sweeping."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest
from tests.support.redis_server import RedisServer

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery
from stepwell.errors import AlreadyExists, Corrupted, InvalidInput, LeaseLost, LockHeld, NotFound
from stepwell.model.commit import (
    Acquire,
    Archiving,
    Claim,
    Commit,
    Deletion,
    Extension,
    LockGuard,
    Renew,
    Seen,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.entry import Clear, Delete, Increment, StateOp, Touch
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.stores.redis.drafting import Draft
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.sample import (
    HOUR,
    SCOPE,
    Execution,
    answers,
    claim,
    landed,
    put,
    refused,
    status,
    variable,
    write,
    write_state,
)


class Site:
    """A store under test, and the server seen from outside."""

    def __init__(self, server: RedisServer, url: str, clock: FakeClock) -> None:
        self.url, self.clock, self.client = url, clock, server.client()
        self.keys = Keys(url.rpartition("prefix=")[2])
        self._opened: list[RedisStore] = []
        self.store = self.open()

    def open(self, limits: Limits | None = None, **options: object) -> RedisStore:
        extra = "".join(f"&{name}={value}" for name, value in options.items())
        store = RedisStore(self.url.replace("?", f"?{extra.removeprefix('&')}&" if extra else "?"), self.clock, limits or Limits())
        store.open()
        self._opened.append(store)
        return store

    def names(self) -> set[bytes]:
        """All keys of the store."""
        return set(self.client.scan_iter(match=f"{self.url.rpartition('prefix=')[2]}:*", count=1000))

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self.client.close()


@pytest.fixture
def site(redis_server: RedisServer, redis_url: str, clock: FakeClock) -> Iterator[Site]:
    site = Site(redis_server, redis_url, clock)
    yield site
    site.close()


# TTL of executions


def test_executions_have_no_end_unless_one_is_asked_for(site: Site) -> None:
    Execution(site.store, "run").create().land()
    assert {site.client.pttl(key) for key in site.names()} == {-1}


@pytest.mark.parametrize("kind", ["commit", "claim", "extend", "archive"])
def test_every_write_starts_the_ttl_of_all_keys_of_an_execution_anew(site: Site, kind: str) -> None:
    store = site.open(execution_ttl=1000)
    execution = Execution(store, "run").create()
    execution.land(commit_id="mine")
    lease = claim(store, "run")
    keys = site.keys.execution("run")
    for key in keys:
        site.client.pexpire(key, 5000)
    units: dict[str, Unit] = {
        "commit": execution.commit(),
        "claim": Claim("run", "a", 60),
        "extend": Extension("run", "a", lease.fence, 60),
        "archive": Archiving("run", execution.snapshot()),
    }
    landed(write(store, units[kind]))
    left = [site.client.pttl(key) for key in keys if site.client.exists(key)]
    assert len(left) == (2 if kind == "archive" else 3)
    assert all(990_000 < each <= 1_000_000 for each in left)


def test_execution_whose_ttl_ended_is_gone_and_its_places_are_forgotten_by_a_sweep(site: Site) -> None:
    store = site.open(execution_ttl=1000)
    Execution(store, "gone").create()
    Execution(store, "here").create()
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
    Execution(store, "run").create()
    landed(write(store, Deletion("run")))
    refused(write(store, Execution(store, "run").creation()), AlreadyExists)
    assert site.client.hkeys(site.keys.execution("run").head) == [b"deleted"]
    assert 0 < site.client.pttl(site.keys.execution("run").head) <= 1_000_000


# The index


def places(site: Site) -> list[bytes]:
    return site.client.zrange(site.keys.executions, 0, -1)


def test_execution_has_one_place_by_age_by_workspace_and_by_status(site: Site) -> None:
    execution = Execution(site.store, "run").create()
    assert [place[:9] for place in places(site)] == [b"a/1001767", b"s/PENDING", b"w/4:acme1"]
    execution.land(status("RUNNING"))
    assert [place[:9] for place in places(site)] == [b"a/1001767", b"s/RUNNING", b"w/4:acme1"]
    landed(write(site.store, Deletion("run")))
    assert places(site) == []


def test_listing_walks_past_many_executions_that_do_not_match(site: Site) -> None:
    creations = [
        Execution(site.store, f"run-{number:04}", workflow="rare" if number < 50 else "common").creation()
        for number in range(1_100)
    ]
    assert {type(each) for each in site.store.write(creations)} == {Written}
    found = site.store.find(ExecutionQuery(workflow_id="rare", limit=60))
    assert [head.execution_id for head in found] == [f"run-{number:04}" for number in range(49, -1, -1)]


# Scripts


def test_scripts_that_the_server_forgot_are_loaded_again(site: Site) -> None:
    execution = Execution(site.store, "run").create()
    site.client.script_flush()
    landed(write(site.store, execution.foresee()))
    site.client.script_flush()
    assert len(site.store.history("run", -1, 10)) == 2


def test_forgotten_scripts_do_not_change_the_order_of_a_group(site: Site) -> None:
    execution = Execution(site.store, "run").create()
    first, second = execution.foresee(), execution.foresee()
    site.client.script_flush()
    # The server still knows the script that claims, and not the one that commits: the claims land before the commits.
    site.client.script_load(SCRIPTS["claim"].text)
    outcomes = site.store.write([first, Claim("run", "a", 60), StateBatch((put("k"),)), second, first, Claim("run", "b", 60)])
    assert [type(each) for each in outcomes] == [Written, Written, Written, Written, Seen, LockHeld]


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
    read, reads = Draft.read, list[Draft]()

    def read_and_race(self: Draft, ops: Iterable[StateOp]) -> None:
        read(self, ops)
        reads.append(self)
        if len(reads) == 1:
            assert write_state(other, Touch(SCOPE, "k")) == [True]

    monkeypatch.setattr(Draft, "read", read_and_race)
    assert write_state(site.store, Increment(SCOPE, "k")) == [2]
    assert len(reads) == 3, "one for the touch, and two for the increment"


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
    left = site.client.pttl(site.keys.lock("door").lock)
    assert 10_000 < left <= 10_000 + 3_600_000
    site.clock.advance(HOUR)
    write(site.store, Sweep(0))
    assert site.keys.lock("door").lock not in site.names()
    assert site.client.zcard(site.keys.locks) == 0


def test_lock_that_was_given_back_leaves_no_key(site: Site) -> None:
    """T26."""
    before = site.names()
    for number in range(10):
        [lease] = answers(write(site.store, Acquire(f"door-{number}", "a", 10)))
        landed(write(site.store, Unlock(f"door-{number}", "a", lease.fence)))
    assert site.names() - before == {site.keys.fence, site.keys.mark} - before


@pytest.mark.parametrize("seconds", [0, -1, 0.0004, float("nan"), float("inf"), 1e12])
def test_lease_of_no_sensible_length_is_refused_before_redis_sees_it(site: Site, seconds: float) -> None:
    """T22: PEXPIRE with 0 would delete the lock and say that all is well."""
    Execution(site.store, "run").create()
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


# Damage


@pytest.mark.parametrize("part", ["head", "commits", "snapshots"])
def test_execution_that_lost_a_part_is_quarantined_and_never_made_anew(site: Site, part: str) -> None:
    """T17: others are not affected."""
    execution, other = Execution(site.store, "run").create(), Execution(site.store, "other").create()
    execution.land()
    write(site.store, Archiving("run", execution.snapshot()))
    execution.land()
    site.client.delete(getattr(site.keys.execution("run"), part))
    if part == "snapshots":
        assert site.store.base("run") is None
    else:
        refused(write(site.store, execution.commit()), Corrupted)
    creation = write(site.store, Execution(site.store, "run").creation())
    assert isinstance(creation, Corrupted if part == "head" else AlreadyExists)
    landed(write(site.store, other.commit()))


@pytest.mark.parametrize(
    ("part", "value"),
    [("revision", "x"), ("fence", ""), ("created", "\xff"), ("workspace", b"\xff")],
)
def test_head_that_cannot_be_read_is_reported_as_damage(site: Site, part: str, value: str | bytes) -> None:
    """T11, T59."""
    Execution(site.store, "run").create()
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
    Execution(site.store, "run").create()
    site.client.lset(site.keys.execution("run").commits, 0, b"\x80\x04\x95junk")
    with pytest.raises(Corrupted, match="run"):
        site.store.load("run")


def test_flushed_server_is_not_taken_for_a_new_store(tmp_path_factory: pytest.TempPathFactory, clock: FakeClock) -> None:
    """T17: reads, writes and the health check say so, until the store is opened again."""
    with RedisServer(tmp_path_factory.mktemp("flushed")) as server:
        site = Site(server, server.url("mine"), clock)
        execution = Execution(site.store, "run").create()
        site.client.flushall()
        late = execution.commit()
        refused(write(site.store, late), Corrupted)
        refused(write(site.store, Execution(site.store, "run").creation()), Corrupted)
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


# Listening


class Topics:
    """Collects what a listener is woken with."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str] = queue.Queue()

    def __call__(self, topic: str) -> None:
        self._queue.put(topic)

    def next(self) -> str:
        return self._queue.get(timeout=10)

    def is_quiet(self) -> bool:
        return self._queue.empty()


def test_listener_hears_what_other_processes_write(site: Site) -> None:
    other, topics = site.open(), Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    [lease] = answers(write(other, Acquire("door", "a", 60)))
    write(other, StateBatch((put("k"),)))
    assert topics.next() == "state"
    write(other, Unlock("door", "a", lease.fence))
    assert topics.next() == "lock"
    execution = Execution(other, "run").create()
    execution.land()
    execution.land(ops=(put("k", 2),))
    assert topics.next() == "state"
    assert topics.is_quiet()
    end()


def test_listener_comes_back_after_its_connection_was_cut(site: Site) -> None:
    topics = Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    site.client.client_kill_filter(_type="pubsub")
    assert topics.next() == ""
    write(site.open(), StateBatch((put("k"),)))
    assert topics.next() == "state"
    end()


def test_listener_that_was_ended_leaves_no_thread_and_no_connection(site: Site) -> None:
    topics = Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    end()
    for thread in threading.enumerate():
        if thread.name == "stepwell-listener":
            thread.join(timeout=10)
            assert not thread.is_alive()
    assert not [each for each in site.client.client_list(_type="pubsub") if each["sub"] != "0"]


def test_change_mark_differs_after_every_kind_of_write(site: Site) -> None:
    execution = Execution(site.store, "run").create()
    units: list[object] = [
        execution.foresee(),
        StateBatch((put("k"),)),
        Acquire("door", "a", 60),
        Claim("run", "a", 60),
        Deletion("run"),
    ]
    marks = [site.store.change_mark()]
    for unit in units:
        write(site.store, unit)
        marks.append(site.store.change_mark())
    assert len(set(marks)) == len(marks)


# Commits


def test_id_of_a_user_that_looks_like_one_of_ours_is_seen_at_any_revision(site: Site) -> None:
    execution = Execution(site.store, "run").create()
    at_its_own, elsewhere = execution.foresee(commit_id="r1.mine"), execution.foresee(commit_id="r1.other")
    assert [type(each) for each in site.store.write([at_its_own, elsewhere])] == [Written, Written]
    later = execution.commit(variable("n", 1))
    for commit in (at_its_own, elsewhere):
        again = Commit(**{**{name: getattr(later, name) for name in later.__struct_fields__}, "commit_id": commit.commit_id})
        assert write(site.store, again) == Seen(commit.header, commit.body)
        row = site.store.commit_of("run", commit.commit_id)
        assert row is not None
        assert row.revision == commit.revision


def test_ordinary_commit_needs_no_entry_for_its_id(site: Site) -> None:
    execution = Execution(site.store, "run").create()
    execution.land()
    assert not site.client.exists(site.keys.execution("run").ids)
    execution.land(commit_id="mine")
    assert site.client.zrange(site.keys.execution("run").ids, 0, -1) == [b"mine"]
