"""T01, T06 and T13 on PostgreSQL: writers, backends and the server itself killed in the middle of commits."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.acks import AckLog
from tests.faults.callers import CALLERS, Blocking, Caller
from tests.faults.children import Child
from tests.faults.crash_case import ACTS, ORDER, Picture, follow_up, prepare, world
from tests.faults.hooks import Boom, Trace, at
from tests.faults.invariants import check_acks, check_chain
from tests.faults.leases import LEASE_SECONDS, claim
from tests.support.postgres_server import PostgresServer

from stepwell import CommitUnknown, FakeClock, LeaseLost, Stepwell, StoreUnavailable, SystemClock
from stepwell.errors import StepwellError
from stepwell.fault_points import POINTS, armed
from stepwell.stores.postgres import transaction, writer

pytestmark = pytest.mark.usefixtures("given_clock")

_KINDS: dict[str, type[BaseException]] = {"blocking": Boom, "awaited": asyncio.CancelledError}
# T01 says five seconds. The limit is longer for a busy machine: it only tells a wait for a dead process from none.
_LONGEST_REOPEN_SECONDS = 60.0


class Site:
    """The shared schema with the prepared execution in it, again and again."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server, self.schema, self.url = server, schema, server.url(schema)

    def renew(self) -> None:
        """Empty every table and prepare the execution."""
        tables = ("executions", "commits", "snapshots", "state_scopes", "state_entries", "locks")
        with self.server.connect() as connection:
            connection.execute("; ".join(f"DELETE FROM {self.schema}.{table}" for table in tables))
        caller = Blocking(self.url)
        prepare(caller)
        caller.close()

    def idle_in_transaction(self) -> int:
        """How many sessions hold a transaction open and do nothing."""
        with self.server.connect() as connection:
            [(count,)] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            ).fetchall()
        assert isinstance(count, int)
        return count


@pytest.fixture
def site(postgres_server: PostgresServer, postgres_schema: str, postgres_url: str) -> Site:
    return Site(postgres_server, postgres_schema)


@pytest.fixture(scope="module")
def hits(postgres_server: PostgresServer, postgres_schema: str) -> dict[str, Trace]:
    """For each act the points that it reaches on PostgreSQL."""
    site, traces = Site(postgres_server, postgres_schema), {}
    for name, act in ACTS.items():
        site.renew()
        caller, traces[name] = Blocking(site.url), Trace()
        commit = act.begin(caller)
        with armed(traces[name]):
            commit()
        caller.close()
    return traces


_OF_THE_STORE = {"store.before_begin", "store.before_commit", "store.committed"}
REACHED = tuple(point for point in POINTS if point in _OF_THE_STORE or not point.startswith("store."))
"""The points that a write to PostgreSQL passes. What lies between them is one round trip: see ``test_postgres_cuts``."""


def has_landed(trace: Trace, point: str) -> bool:
    return trace.points.index(point) >= trace.points.index("store.committed")


def raising(kind: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise kind

    return act


def test_writes_reach_every_point_that_postgres_has(hits: dict[str, Trace]) -> None:
    """T01: no point that nothing reaches."""
    assert {point for trace in hits.values() for point in trace.points} == set(REACHED)


@pytest.mark.parametrize("path", ["fast", "general"])
@pytest.mark.parametrize("act", ACTS)
def test_both_paths_come_to_the_receipts_and_state_of_memory(
    act: str, path: str, site: Site, pictures: dict[str, list[Picture]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T01, T51: what the crash tests compare with depends neither on the store nor on its path."""
    case = next(each for each in pictures["memory"] if each.act.name == act)
    if path == "general":
        monkeypatch.setattr(writer, "is_fast", lambda _: False)
    site.renew()
    caller = Blocking(site.url)
    commit = case.act.begin(caller)
    assert world(caller) == case.old
    assert commit() == case.receipt
    assert world(caller) == case.new
    caller.close()


@pytest.mark.parametrize("point", REACHED)
@pytest.mark.parametrize("colour", CALLERS)
def test_a_commit_that_fails_is_old_or_new_and_its_retry_lands_once(
    colour: str, point: str, site: Site, hits: dict[str, Trace], pictures: dict[str, list[Picture]]
) -> None:
    """T01, T08: an exception or CancelledError at every point; I1, I3, I4; the same well goes on, and no transaction is left."""
    for case in pictures["memory"]:
        trace = hits[case.act.name]
        if point not in trace.points:
            continue
        site.renew()
        caller = CALLERS[colour](site.url)
        commit = case.act.begin(caller)
        is_unknown = point == "store.committed" and issubclass(_KINDS[colour], Exception)
        with armed(at(point, 1, raising(_KINDS[colour]))), pytest.raises(CommitUnknown if is_unknown else _KINDS[colour]):
            commit()
        assert site.idle_in_transaction() == 0
        assert world(caller) == (case.new if has_landed(trace, point) else case.old)
        assert [retry().digest for retry in (case.act.begin(caller), commit)] == [case.receipt.digest] * 2
        assert world(caller) == case.new
        caller.begin(case.act.execution_id, None, follow_up).commit()
        check_chain(caller, case.act.execution_id)
        caller.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Child]:
    with Child("fork_server") as child:
        yield child


@pytest.mark.parametrize("point", REACHED)
def test_a_killed_commit_is_old_or_new_and_its_retry_lands_once(
    point: str, site: Site, hits: dict[str, Trace], pictures: dict[str, list[Picture]], nursery: Child, tmp_path: Path
) -> None:
    """T01: kill -9 at every hit of every point of the store; I1 to I4; reopened and resumed without a wait for the dead.

    The points above the store do not depend on it, and every hit of theirs is killed on SQLite: here the first.
    """
    most = None if point.startswith("store.") else 1
    cases = [(case, hit + 1) for case in pictures["memory"] for hit in range(hits[case.act.name].hits()[point])[:most]]
    assert cases, "no act reaches the point"
    for number, (case, hit) in enumerate(cases):
        site.renew()
        acks = tmp_path / f"{number}.acks"
        nursery.tell(json.dumps([site.url, list(CALLERS)[number % 2], case.act.name, point, str(hit), str(acks)]))
        assert int(nursery.hear()) == -signal.SIGKILL

        began = time.monotonic()
        caller = Blocking(site.url)
        caller.load(ORDER)
        check_and_retry(caller, case, has_landed(hits[case.act.name], point))
        assert time.monotonic() - began < _LONGEST_REOPEN_SECONDS
        check_acks(caller, AckLog.read(acks))
        caller.close()


def check_and_retry(caller: Caller, case: Picture, is_landed: bool) -> None:
    act = case.act
    assert world(caller) == (case.new if is_landed else case.old)
    assert caller.receipt(act.execution_id, act.commit_id) == (case.receipt if is_landed else None)
    assert act.begin(caller)() == case.receipt
    assert world(caller) == case.new
    caller.begin(act.execution_id, None, follow_up).commit()
    check_chain(caller, act.execution_id)


def take_over(well: Stepwell, execution_id: str, old_fence: int) -> None:
    lease = claim(well, execution_id, "successor")
    assert lease.fence > old_fence
    with well.transaction(execution_id, fence=lease.fence) as tx:
        tx.set_variable("written_by", "successor")


@pytest.mark.parametrize("point", ["commit.validated", "store.before_begin", "store.before_commit"])
def test_a_process_stopped_past_its_lease_cannot_commit_when_it_goes_on(point: str, site: Site) -> None:
    """T06: real processes and SIGSTOP, outside the transaction and inside it, where it holds the row that its successor needs."""
    later = FakeClock(SystemClock().now())
    later.advance(2 * LEASE_SECONDS)
    with (
        Stepwell(site.url) as now,
        Stepwell(site.url, clock=later) as successor,
        Child("paused_writer", site.url, point) as sleeper,
    ):
        for number in range(3 if point.startswith("commit") else 1):
            execution_id = f"run-{number}"
            now.create(execution_id)
            sleeper.tell(execution_id)
            sleeper.wait_until_stopped()
            if point == "store.before_commit":
                end_what_stands_still(site)
            take_over(successor, execution_id, old_fence=1)
            sleeper.signal(signal.SIGCONT)
            assert sleeper.hear() == "refused"
            assert now.load(execution_id).variables == {"written_by": "successor"}
            assert now.verify(execution_id).receipts == 2


def end_what_stands_still(site: Site) -> None:
    """End an idle transaction at once, as the server does after the limit that every such transaction sets."""
    with site.server.connect() as connection:
        [(count,)] = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        ).fetchall()
    assert count == 1


def test_a_transaction_that_stands_still_is_ended_by_the_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """T06: so that a stopped process holds nobody up for longer than that."""
    monkeypatch.setattr(transaction, "BEGIN", (("begin", ()), ("set_bounds", (transaction.LOCK_TIMEOUT, "50ms"))))
    site.renew()
    caller, other = Blocking(site.url), Blocking(site.url)
    late = caller.begin(ORDER, "late", follow_up)

    def stand_still() -> None:
        while site.idle_in_transaction():
            pass
        other.begin(ORDER, "early", follow_up).commit()

    with armed(at("store.before_commit", 1, stand_still)), pytest.raises(StepwellError) as caught:
        late.commit()
    assert not isinstance(caught.value, CommitUnknown)
    check_chain(caller, ORDER)
    assert [receipt.commit_id for receipt in caller.receipts(ORDER)][-1] == "early"
    caller.close()
    other.close()


def test_a_paused_writer_never_overwrites_its_successor(site: Site) -> None:
    """T06: 0 stale accepts in 100 pauses on the short way, which has no inside to be paused in."""
    clock = FakeClock()
    with Stepwell(site.url, clock=clock) as well:
        for number in range(100):
            execution_id = f"run-{number}"
            well.create(execution_id)
            fence = claim(well, execution_id, "sleeper").fence
            late = well.transaction(execution_id, fence=fence).begin()
            late.set_variable("written_by", "sleeper")
            clock.advance(LEASE_SECONDS + 1)
            assert claim(well, execution_id, "successor").fence > fence
            with pytest.raises(LeaseLost):
                late.commit()
            assert well.load(execution_id).revision == 0


class Load:
    """Threads that commit and note what they were told, until they are ended; errors must be of a kind that can be tried again."""

    def __init__(self, url: str, acks: Path, writers: int = 4) -> None:
        self._url, self._log, self._ended = url, AckLog(acks), threading.Event()
        self.errors: list[BaseException] = []
        self.told = 0
        self._caller = Blocking(url, SystemClock())
        for number in range(writers):
            self._caller.create(f"run-{number}", "first")
        self._threads = [threading.Thread(target=self._work, args=(f"run-{number}",)) for number in range(writers)]
        for thread in self._threads:
            thread.start()

    def _work(self, execution_id: str) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            try:
                self._commit(execution_id, f"commit-{number}")
            except Exception as error:  # noqa: BLE001 - the test looks at what there is
                self.errors.append(error)
                return

    def _commit(self, execution_id: str, commit_id: str) -> None:
        """Try a commit under one id until somebody says what became of it."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self._log.note(self._caller.begin(execution_id, commit_id, _count).commit())
                self.told += 1
                return
            except (StoreUnavailable, CommitUnknown):
                if time.monotonic() > deadline:
                    raise

    def wait_for(self, more: int) -> None:
        """Wait until that many more commits were acknowledged."""
        target, deadline = self.told + more, time.monotonic() + 60
        while self.told < target and not self.errors and time.monotonic() < deadline:
            self._ended.wait(0.001)
        assert self.told >= target, self.errors

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._log.close()
        self._caller.close()


def _count(tx: object) -> None:
    tx.increment_step_count()  # type: ignore[attr-defined]


def check_after(load: Load, url: str, acks: Path) -> None:
    """Nothing that was acknowledged is lost, and nothing landed twice."""
    assert load.errors == []
    caller = Blocking(url)
    check_acks(caller, AckLog.read(acks))
    for number in range(4):
        check_chain(caller, f"run-{number}")
        state = caller.load(f"run-{number}")
        assert state.step_count == state.revision
    caller.close()


def test_backends_killed_in_the_middle_of_commits_lose_nothing_that_was_acknowledged(site: Site, tmp_path: Path) -> None:
    """T13: pg_terminate_backend on whoever is committing, again and again; callers see retryable errors and nothing else."""
    acks = tmp_path / "acks"
    load = Load(site.url, acks)
    ended = 0
    with site.server.connect() as connection:
        while ended < 20:
            load.wait_for(3)
            ended += connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ 'commits' AND pid <> pg_backend_pid()"
            ).rowcount
    load.wait_for(10)
    load.end()
    check_after(load, site.url, acks)


def test_a_server_that_is_restarted_at_once_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """T13: as after a crash; the store comes back by itself."""
    acks = tmp_path / "acks"
    with PostgresServer() as server:
        url = server.url("x")
        Blocking(url).close()
        load = Load(url, acks)
        load.wait_for(50)
        server.kill()
        server.launch()
        load.wait_for(20)
        load.end()
        check_after(load, url, acks)


def test_idle_connections_that_the_server_ended_are_replaced_without_anybody_noticing(site: Site) -> None:
    """T13, T41: the end of an idle connection is seen before anything is sent on it, so no outcome is in doubt."""
    site.renew()
    caller = Blocking(site.url)
    for number in range(4):
        with site.server.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'stepwell'")
        caller.begin(ORDER, f"commit-{number}", follow_up if number == 0 else _count).commit()
    check_chain(caller, ORDER)
    caller.close()
