"""T03, T08 and T14 on PostgreSQL: replies that are lost, late or cut, callers that give up, and every error code that matters."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.polling import until
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict, at_match

from stepwell import AsyncStepwell
from stepwell.clock import FakeClock
from stepwell.errors import CommitUnknown, Corrupted, StoreFull, StoreUnavailable
from stepwell.model.commit import Acquire, Claim, Commit, Seen, StateBatch, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import Copy, Increment
from stepwell.stores.postgres import connection_pool, transaction
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import (
    HOUR,
    NOTHING,
    SCOPE,
    SampleExecution,
    acquire,
    content,
    everything,
    landed,
    put,
    walk,
    write,
    write_state,
)

_RUNS = 40

# The last byte ends a name in the protocol, so that one statement is not taken for another that begins like it.
_FAST, _GENERAL = b"stepwell_commit_one\0", b"stepwell_commit\0"


class Site:
    """A store whose connections go through a proxy, one that sees the server directly, and a plain connection."""

    def __init__(self, server: PostgresServer, schema: str, proxy: Proxy) -> None:
        self.server, self.schema, self.proxy, self.clock = server, schema, proxy, FakeClock()
        self.direct = self.open(server.url(schema))
        self.store = self.open(server.url(schema, port=proxy.port, reply_timeout=3, connect_timeout=20))

    def open(self, url: str) -> PostgresStore:
        store = PostgresStore(url, self.clock, Limits())
        store.open()
        return store

    def close(self) -> None:
        self.store.close()
        self.direct.close()

    def spoil(self, statement: bytes, verdict: Verdict) -> None:
        """Have the next run of a statement go wrong."""
        self.proxy.acted.clear()
        self.proxy.on_request = at_match(statement, verdict)

    def sql(self, statement: str, *arguments: object) -> list[tuple[object, ...]]:
        """Ask the server from outside."""
        with self.server.connect() as connection:
            cursor = connection.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def site(postgres_server: PostgresServer, postgres_schema: str, postgres_url: str) -> Iterator[Site]:
    with Proxy(postgres_server.port) as proxy:
        site = Site(postgres_server, postgres_schema, proxy)
        yield site
        site.close()


def counting(run: SampleExecution, statement: bytes) -> Commit:
    """A commit that counts itself; with scoped state it takes the general path."""
    return run.commit(ops=(Increment(SCOPE, "n"),) if statement is _GENERAL else ())


@pytest.mark.parametrize("statement", [_FAST, _GENERAL], ids=["fast", "general"])
@pytest.mark.parametrize(("verdict", "lands"), [(Verdict.SWALLOW, True), (Verdict.HOLD, True), (Verdict.CUT, False)])
def test_lost_reply_is_unknown_and_the_id_tells_what_became_of_it(
    verdict: Verdict, lands: bool, statement: bytes, site: Site
) -> None:
    """T03: swallowed, held back, or never delivered: the caller cannot tell, the store can, and a retry lands once."""
    run = SampleExecution(site.store).create()
    unit = counting(run, statement)
    write(site.store, counting(SampleExecution(site.store, "other").create(), statement))
    site.spoil(statement, verdict)
    with pytest.raises(CommitUnknown):
        site.store.write([unit])
    assert site.proxy.acted.wait(60)
    assert (site.direct.commit_of(run.id, unit.commit_id) is not None) is lands
    assert isinstance(write(site.store, unit), Seen if lands else Written)
    assert isinstance(write(site.store, unit), Seen)
    assert run.head.revision == 1


@pytest.mark.parametrize("statement", [_FAST, _GENERAL], ids=["fast", "general"])
def test_blind_retries_of_lost_replies_count_each_commit_once(statement: bytes, site: Site) -> None:
    """T03: the counter is the number of distinct commit ids, whatever was lost."""
    run, rng = SampleExecution(site.store).create(), random.Random(3)
    for _ in range(_RUNS):
        unit = counting(run, statement)
        site.spoil(statement, rng.choice([Verdict.SWALLOW, Verdict.CUT, Verdict.PASS]))
        for _ in range(10):
            try:
                assert isinstance(write(site.store, unit), Written | Seen)
                break
            except CommitUnknown:
                pass
        run.follow()
    assert run.head.revision == _RUNS
    assert walk(site.direct, run.id).ok
    if statement is _GENERAL:
        assert content(site.direct) == {"n": _RUNS}


def test_read_after_all_connections_were_cut_gets_through_on_a_new_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: connections that were used a moment ago are lent without a look, and one cut ends them all."""
    monkeypatch.setattr(connection_pool, "_FRESH_SECONDS", 60)
    site.proxy.delay_seconds = 0.2  # so that all of them are lent at the same time
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(site.store.head, ["none"] * 4)) == [None] * 4
    site.proxy.delay_seconds = 0.0
    site.proxy.cut()
    assert site.store.head("none") is None


def test_group_whose_reply_was_lost_is_unknown_as_a_whole_and_landed_as_a_whole(site: Site) -> None:
    """T03: every caller of the group is told, and every one of them can ask."""
    runs = [SampleExecution(site.store, f"run-{number}").create() for number in range(5)]
    site.store.write([run.foresee() for run in runs])  # so that the statement is prepared
    units: list[Unit] = [run.commit() for run in runs]
    site.spoil(b"stepwell_commit_group\0", Verdict.SWALLOW)
    with pytest.raises(CommitUnknown):
        site.store.write(units)
    assert site.proxy.acted.wait(60)
    assert [type(outcome) for outcome in site.store.write(units)] == [Seen] * 5


def test_connection_lost_before_the_commit_is_sent_is_nobodys_business(site: Site) -> None:
    """T13: the transaction is made again on a new connection, since it cannot have landed."""
    run = SampleExecution(site.store).create()
    for statement in (b"stepwell_lock_heads\0", b"stepwell_now\0"):
        site.spoil(statement, Verdict.CUT)
        run.land(ops=(Increment(SCOPE, "n"),))
        assert site.proxy.acted.is_set()
    assert content(site.direct) == {"n": 2}


def test_reads_are_tried_again_on_a_new_connection(site: Site) -> None:
    run = SampleExecution(site.store).create().grow(2)
    for statement in (b"stepwell_head\0", b"stepwell_begin_reading\0", b"stepwell_totals\0"):
        site.spoil(statement, Verdict.SWALLOW)
        assert everything(site.store, run.id) == everything(site.direct, run.id)
        assert site.store.totals(SCOPE).keys == 0
        assert site.proxy.acted.is_set()


def test_server_that_goes_away_is_reported_and_comes_back_by_itself(site: Site) -> None:
    """T41: flaps are survived without a restart."""
    run = SampleExecution(site.store).create()
    for number in range(3):
        site.proxy.on_request = lambda _: Verdict.CUT
        site.proxy.cut()
        with pytest.raises(StoreUnavailable):
            site.store.write([run.commit()])
        with pytest.raises(StoreUnavailable):
            site.store.head(run.id)
        site.proxy.on_request = lambda _: Verdict.PASS
        run.land(commit_id=f"commit-{number}")
    assert walk(site.direct, run.id).ok


def test_slow_network_delays_and_breaks_nothing(site: Site) -> None:
    site.proxy.delay_seconds = 0.02
    run = SampleExecution(site.store).create().grow(3)
    run.land(ops=(put("a"),))
    assert walk(site.store, run.id).ok


def test_what_is_larger_than_every_buffer_goes_both_ways_at_once(site: Site) -> None:
    """A pipeline whose requests and replies both wait for the other side would wait for ever."""
    keys, big = [f"key-{number}" for number in range(40)], "x" * 250_000
    write_state(site.direct, *(put(key, big) for key in keys))
    write_state(site.direct, *(Copy(SCOPE, key, SCOPE, f"{key}-again") for key in keys))
    assert len(content(site.direct)) == 80


# Callers that give up.


def test_cancelled_callers_leave_no_transaction_and_no_doubt(site: Site) -> None:
    """T08: 300 cancels at any await; each commit landed whole or not at all, and the connections are clean."""

    async def commit(well: AsyncStepwell, number: int) -> None:
        async with well.transaction(f"run-{number % 7}", commit_id=f"commit-{number}") as tx:
            tx.increment_step_count()
            tx.state(well.state.globals).increment("n")

    async def scenario() -> None:
        rng = random.Random(8)
        async with AsyncStepwell(site.server.url(site.schema), clock=FakeClock(), worker=False) as well:
            for number in range(7):
                await well.create(f"run-{number}")
            for first in range(0, 300, 20):
                tasks = [asyncio.ensure_future(commit(well, first + number)) for number in range(20)]
                for _ in range(rng.randrange(40)):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await well.state.custom("barrier").increment("n")  # whatever was under way is over when this is written
            states = [await well.load(f"run-{number}") for number in range(7)]
            counts = [state.step_count for state in states]
            assert counts == [state.revision for state in states]
            assert sum(counts) == await well.state.globals.get("n", 0)
            assert all([(await well.verify(f"run-{number}")).ok for number in range(7)])

    asyncio.run(scenario())
    assert site.sql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == [(0,)]


def test_interrupted_writer_never_reads_the_reply_of_what_it_left(site: Site) -> None:
    """T08: Ctrl-C while the server is busy; the next write has a connection of its own, and gets its own answer."""
    run, other = SampleExecution(site.direct).create(), SampleExecution(site.direct, "other").create()
    with site.server.connect() as blocker, blocker.transaction():
        blocker.execute(f"SELECT 1 FROM {site.schema}.executions WHERE execution_id = %s FOR UPDATE", (run.id,))

        def interrupt() -> None:
            while not site.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                pass
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            site.direct.write([run.commit()])
        thread.join()
        other.land()
        assert site.direct.head(other.id) == other.head
    assert walk(site.direct, other.id).ok


# Error codes.


class Trip:
    """A trigger that makes the server fail as it is told, when a table is written to, a number of times."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def set(self, table: str, action: str, times: int) -> None:
        """From now on the first so many writes of rows to a table end in an action; what the sequence says is never rolled back."""
        schema = self._site.schema
        self.clear()
        self._site.sql(f"""
            CREATE SEQUENCE {schema}.trips;
            CREATE FUNCTION {schema}.trip() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('{schema}.trips') <= {times} THEN {action}; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER trip BEFORE INSERT OR UPDATE ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION {schema}.trip();
        """)

    def clear(self) -> None:
        """No more of it."""
        schema = self._site.schema
        self._site.sql(f"DROP FUNCTION IF EXISTS {schema}.trip() CASCADE; DROP SEQUENCE IF EXISTS {schema}.trips")


@pytest.fixture
def trip(site: Site) -> Iterator[Trip]:
    trip = Trip(site)
    yield trip
    trip.clear()


def raising(sqlstate: str) -> str:
    return f"RAISE EXCEPTION 'tripped' USING ERRCODE = '{sqlstate}'"


def everything_at_once(run: SampleExecution, name: str) -> list[Unit]:
    """A group that writes to every table."""
    first = SampleExecution(run.store, f"{run.id}-{name}")
    return [
        first.creation(),
        run.commit(snapshot=run.snapshot(), ops=(Increment(SCOPE, "n"),)),
        StateBatch((put(name),)),
        Acquire(name, "a", HOUR),
        Claim(run.id, "a", HOUR),
    ]


_TABLES = ("executions", "commits", "snapshots", "state_scopes", "state_entries", "locks")


@pytest.mark.parametrize("table", _TABLES)
def test_lost_races_are_tried_again_as_a_whole(table: str, site: Site, trip: Trip) -> None:
    """T14: 40001, 40P01, 55P03 and 23505 on every table: the whole transaction anew, at most five times, and nothing twice."""
    run = SampleExecution(site.direct).create()
    for number, sqlstate in enumerate(("40001", "40P01", "55P03", "23505")):
        trip.set(table, raising(sqlstate), times=4)
        for outcome in site.direct.write(everything_at_once(run, f"turn-{number}")):
            landed(outcome)
        run.follow()
        assert content(site.direct)["n"] == number + 1 == run.head.revision
        trip.set(table, raising(sqlstate), times=1_000)
        before = everything(site.direct, run.id), content(site.direct)
        with pytest.raises(StoreUnavailable, match="too often; try again"):
            site.direct.write(everything_at_once(run, f"never-{number}"))
        assert site.sql(f"SELECT last_value FROM {site.schema}.trips") <= [(5,)]
        trip.clear()
        assert (everything(site.direct, run.id), content(site.direct)) == before
        assert everything(site.direct, f"{run.id}-never-{number}") == NOTHING


@pytest.mark.parametrize("is_alone", [True, False])
def test_lost_races_of_ordinary_commits_are_tried_again(is_alone: bool, site: Site, trip: Trip) -> None:
    """T14: the one statement of a group is its whole transaction."""
    runs = [SampleExecution(site.direct, f"run-{number}").create() for number in range(1 if is_alone else 5)]
    for table in ("executions", "commits"):
        for sqlstate in ("40001", "40P01", "55P03"):
            trip.set(table, raising(sqlstate), times=3)
            for outcome in site.direct.write([run.foresee() for run in runs]):
                landed(outcome)
    assert {run.head.revision for run in runs} == {6}
    assert all(walk(site.direct, run.id).ok for run in runs)


def sessions(site: Site) -> int:
    """How many sessions of stores the server has. One whose client has gone is there for a moment longer."""
    [[count]] = site.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stepwell'")
    assert isinstance(count, int)
    return count


def test_failover_to_a_read_only_server_means_a_new_connection(site: Site, trip: Trip) -> None:
    """T14: 25006; the next connection may find the primary, and if it does not, that is what is said."""
    run = SampleExecution(site.direct).create()
    before = sessions(site)
    trip.set("commits", raising("25006"), times=1)
    pid = site.direct.writer.fresh_connection().server_process
    run.land()
    assert site.direct.writer.fresh_connection().server_process != pid
    trip.set("commits", raising("25006"), times=1_000)
    with pytest.raises(StoreUnavailable, match="read-only replica; point the URL at the primary"):
        site.direct.write([run.commit()])
    trip.clear()
    run.land()
    until(lambda: sessions(site) <= before)


@pytest.mark.parametrize("path", ["fast", "general"])
def test_backend_that_dies_inside_the_commit_leaves_it_unknown_and_unwritten(path: str, site: Site, trip: Trip) -> None:
    """T13, T14: 57P01 in the middle of the statement."""
    run = SampleExecution(site.direct).create()
    unit = run.commit(ops=(Increment(SCOPE, "n"),) if path == "general" else ())
    trip.set("commits", "PERFORM pg_terminate_backend(pg_backend_pid())", times=1)
    with pytest.raises(CommitUnknown, match="57P01"):
        site.direct.write([unit])
    assert site.direct.commit_of(run.id, unit.commit_id) is None
    landed(write(site.direct, unit))
    assert run.head.revision == 1


@pytest.mark.parametrize(
    ("sqlstate", "kind", "words"),
    [
        ("53100", StoreFull, "disk is full"),
        ("53200", StoreUnavailable, "short of a resource"),
        ("57014", StoreUnavailable, "statement_timeout"),
        ("42501", StoreUnavailable, "lacks a right"),
        ("XX001", Corrupted, "restore it from a backup"),
        ("P0001", StoreUnavailable, "refused the statement"),
    ],
)
def test_other_errors_are_typed_and_write_nothing(
    sqlstate: str, kind: type[StoreUnavailable], words: str, site: Site, trip: Trip
) -> None:
    """T14: by the code, whatever the words are; the connection is clean afterwards."""
    run = SampleExecution(site.direct).create()
    before = everything(site.direct, run.id)
    trip.set("commits", raising(sqlstate), times=1_000)
    for units in ([run.commit()], everything_at_once(run, "x")):
        with pytest.raises(kind, match=words) as caught:
            site.direct.write(units)
        assert type(caught.value) is kind
        assert f"{sqlstate}: tripped" in str(caught.value)
    trip.clear()
    assert everything(site.direct, run.id) == before
    assert site.sql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == [(0,)]
    run.land()


def test_rows_that_another_transaction_holds_are_waited_for_and_then_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch, wait_briefly: Callable[[], None]
) -> None:
    """T14: 55P03 for real."""
    lease = acquire(site.direct)
    with site.server.connect() as blocker, blocker.transaction():
        blocker.execute(f"SELECT 1 FROM {site.schema}.locks FOR UPDATE")
        wait_briefly()
        with pytest.raises(StoreUnavailable, match="55P03"):
            site.direct.write([Acquire("door", "a", HOUR), Acquire("gate", "a", HOUR)])
    assert acquire(site.direct).fence == lease.fence


@pytest.fixture
def wait_briefly(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    begin = (("begin", ()), ("set_bounds", ("20ms", transaction.IDLE_TIMEOUT)))
    return lambda: monkeypatch.setattr(transaction, "BEGIN", begin)
