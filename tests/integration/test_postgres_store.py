"""What only the PostgreSQL store has: two ways to write, notifications, row-level security, poolers, names longer than an index."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
import pytest
from tests.support.postgres_server import PostgresServer

from stepwell.clock import FakeClock
from stepwell.errors import Conflict, InvalidInput, LeaseLost, LimitExceeded, LockHeld, StoreUnavailable
from stepwell.model.commit import (
    Acquire,
    Claim,
    ClaimDue,
    Commit,
    Creation,
    Deletion,
    Lease,
    LockGuard,
    Release,
    Renew,
    Rest,
    StateBatch,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.draft import Draft
from stepwell.model.entry import Clear, Increment
from stepwell.model.ids import new_commit_id
from stepwell.model.limits import Limits
from stepwell.model.mutation import Mutation
from stepwell.model.scope import Scope
from stepwell.stores.postgres import writer
from stepwell.stores.postgres.settings import parse_url
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.sample import (
    HOUR,
    SCOPE,
    Execution,
    acquire,
    claim,
    content,
    everything,
    landed,
    put,
    refused,
    status,
    variable,
    walk,
    write,
    write_state,
)

_PATIENCE_SECONDS = 10.0

OpenUrl = Callable[..., PostgresStore]
T = TypeVar("T")


@pytest.fixture
def open_url() -> Iterator[OpenUrl]:
    opened: list[PostgresStore] = []

    def open_one(url: str, **limits: int) -> PostgresStore:
        opened.append(PostgresStore(url, FakeClock(), Limits(**limits)))
        opened[-1].open()
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_url: OpenUrl, postgres_url: str) -> PostgresStore:
    return open_url(postgres_url)


@pytest.fixture
def other(open_url: OpenUrl, postgres_url: str) -> PostgresStore:
    """A second store on the same schema, as another process would open it."""
    return open_url(postgres_url)


# Two ways to write.


def take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "is_ordinary", lambda _: False)
    monkeypatch.setattr(writer, "is_one_lock", lambda _: False)


def table(server: PostgresServer, schema: str, name: str, *, without: str) -> list[object]:
    """The rows of a table without a column that differs from run to run."""
    with server.connect() as connection:
        rows = connection.execute(f"SELECT to_jsonb(t) - %s::text FROM {schema}.{name} AS t", (without,)).fetchall()
    return sorted((row[0] for row in rows), key=repr)


class Repeated(Execution):
    """An execution whose commits have the same ids each time that its history is made."""

    def _build(self, mutations: Sequence[Mutation], fields: dict[str, Any]) -> tuple[Draft, Commit]:
        own = {"commit_id": new_commit_id(self.state.revision + 1, "again"), "is_named": "commit_id" in fields}
        return super()._build(mutations, {**own, **fields})


def ordinary_history(store: PostgresStore) -> list[object]:
    """Creations and commits, alone and in groups, some of them refused: what came of each."""
    first, second, third = (Repeated(store, name) for name in ("one", "two", "three"))
    outcomes = [*store.write([first.foresee()]), *store.write([second.foresee(), third.foresee(), first.creation()])]
    outcomes += store.write([first.foresee(status("RUNNING"))])
    outcomes += store.write([second.foresee(variable("n")), third.foresee(commit_id="mine"), Repeated(store, "four").commit()])
    outcomes += store.write([third.commit(commit_id="mine"), second.commit(revision=9), first.foresee(signature=b"signed")])
    for alone in (first.foresee(), first.foresee(signature=b"again"), first.commit(fence=4), first.commit(revision=9)):
        outcomes += store.write([alone])
    outcomes += store.write([first.commit(previous="0" * 64)])
    outcomes += store.write([Repeated(store, "four").commit()])
    outcomes += store.write([second.commit(fence=4), first.foresee(rest=Rest(9**9)), third.foresee(rest=Rest(is_final=True))])
    return [(type(outcome), str(outcome)) for outcome in outcomes]


def test_both_ways_to_write_come_to_the_same_rows_and_outcomes(
    monkeypatch: pytest.MonkeyPatch, open_url: OpenUrl, postgres_server: PostgresServer
) -> None:
    found = []
    for go in (lambda: None, lambda: take_the_long_way(monkeypatch)):
        go()
        schema = postgres_server.new_schema()
        outcomes = ordinary_history(open_url(postgres_server.url(schema)))
        tables = [table(postgres_server, schema, name, without="number") for name in ("executions", "commits", "snapshots")]
        found.append((outcomes, tables))
        postgres_server.drop_schema(schema)
    assert found[0] == found[1]
    assert {Written, Conflict} <= {kind for kind, _ in found[0][0]}


def lock_history(store: PostgresStore, clock: FakeClock) -> list[object]:
    """A lock acquired, refused, renewed, lost and given back: what came of each, without what differs from run to run."""
    outcomes: list[object] = []

    def note(unit: Unit) -> Lease:
        outcome = write(store, unit)
        answers = outcome.answers if isinstance(outcome, Written) else ()
        leases = [answer for answer in answers if isinstance(answer, Lease)]
        outcomes.append((type(outcome), [(lease.name, lease.holder) for lease in leases]))
        return leases[0] if leases else Lease("", "", 0, 0)

    first = note(Acquire("door", "a", 2 * HOUR))
    assert note(Acquire("door", "a", 2 * HOUR)).fence == first.fence
    note(Acquire("door", "b", HOUR))
    for holder, fence in (("b", first.fence), ("a", first.fence + 1)):
        note(Renew("door", holder, fence, HOUR))
        note(Unlock("door", holder, fence))
    assert note(Renew("door", "a", first.fence, 3 * HOUR)).until_ms > first.until_ms
    clock.advance(4 * HOUR)
    note(Renew("door", "a", first.fence, HOUR))
    note(Unlock("door", "a", first.fence))
    second = note(Acquire("door", "b", 2 * HOUR))
    assert second.fence > first.fence
    note(Unlock("door", "b", second.fence, at_least_seconds=HOUR))
    note(Acquire("door", "c", HOUR))
    clock.advance(HOUR + 1)
    third = note(Acquire("door", "c", HOUR))
    note(StateBatch((put("guarded"),), guards=(LockGuard("door", third.fence),)))
    note(Unlock("door", "c", third.fence))
    note(StateBatch((put("guarded"),), guards=(LockGuard("door", third.fence),)))
    assert note(Acquire("door", "d", HOUR)).fence > third.fence
    return outcomes


def test_both_ways_to_lock_come_to_the_same_outcomes(
    monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer, postgres_url: str
) -> None:
    found = []
    for go in (lambda: None, lambda: take_the_long_way(monkeypatch)):
        go()
        clock = FakeClock()
        store = PostgresStore(postgres_url, clock, Limits())
        store.open()
        found.append(lock_history(store, clock))
        landed(write(store, Unlock("door", "d", acquire(store, holder="d").fence)))
        store.close()
    assert found[0] == found[1]
    assert {kind for kind, _ in found[0]} == {Written, LockHeld, LeaseLost}


def test_fences_rise_from_holder_to_holder_whichever_way_they_came(
    open_url: OpenUrl, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T19, T21: whoever comes later has the higher fence, also if it began to ask earlier."""
    stores, fences, counter = [open_url(postgres_url) for _ in range(4)], list[int](), [0]
    for store in stores[2:]:
        monkeypatch.setattr(store._writer, "_way_of", lambda _, store=store: store._writer._write_long)

    def work(number: int) -> None:
        done = 0
        while done < 25:
            outcome = write(stores[number], Acquire("door", f"{number}-{done}", HOUR))
            if isinstance(outcome, Written):
                [lease] = outcome.answers
                assert isinstance(lease, Lease)
                before = counter[0]
                fences.append(lease.fence)
                counter[0] = before + 1
                landed(write(stores[number], Unlock("door", lease.holder, lease.fence)))
                done += 1

    with ThreadPoolExecutor(4) as pool:
        for end in [pool.submit(work, number) for number in range(4)]:
            end.result()
    assert counter == [100]
    assert fences == sorted(set(fences))


def statements(store: PostgresStore, units: list[Unit], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements, or the pipelines of them, that a write sends: one word for each round trip."""
    link, sent = store._writer._fresh_link(), []
    ask_all, exchange = link.ask_all, link._exchange
    monkeypatch.setattr(link, "ask_all", lambda asked: sent.append("+".join(name for name, _ in asked)) or ask_all(asked))
    monkeypatch.setattr(link, "_exchange", lambda name, arguments: sent.append(name) or exchange(name, arguments))
    for outcome in store.write(units):
        landed(outcome)
    monkeypatch.undo()
    return sent


def test_ordinary_commits_are_one_round_trip_and_everything_else_is_two(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [Execution(store, f"run-{number}") for number in range(30)]
    assert statements(store, [each.foresee() for each in many], monkeypatch) == ["create_group"]
    assert statements(store, [each.foresee() for each in many], monkeypatch) == ["commit_group"]
    assert statements(store, [many[0].foresee()], monkeypatch) == ["commit_plain"]
    assert statements(store, [many[0].foresee(status("RUNNING"))], monkeypatch) == ["commit_one"]
    assert statements(store, [many[0].foresee(commit_id="mine")], monkeypatch) == ["commit_one"]
    assert statements(store, [Acquire("gate", "a", HOUR)], monkeypatch) == ["acquire_one"]
    mixed = [many[0].foresee(), many[0].foresee(), many[1].foresee(snapshot=many[1].snapshot()), Deletion("run-2")]
    mixed += [
        StateBatch((put("a"), put("b"), Clear(SCOPE), put("c"))),
        Acquire("door", "a", HOUR),
        Execution(store, "new").creation(),
    ]
    first, second = statements(store, mixed, monkeypatch)
    assert first.startswith("begin+set_bounds+lock_heads")
    assert second.endswith("+commit")


def test_group_of_refusals_leaves_nothing_not_even_empty_rows(
    store: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    refused(write(store, StateBatch((put("a", expected=7),))), Conflict)
    assert list(store.scopes()) == []
    with postgres_server.connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM {postgres_schema}.state_scopes").fetchone() == (0,)


def test_commit_that_rests_gives_its_lease_back_in_the_same_statement(store: PostgresStore) -> None:
    run = Execution(store)
    landed(write(store, run.foresee(creation=Creation("orders", 3, holder="a", lease_seconds=HOUR, is_runnable=True))))
    assert (run.head.holder, run.head.fence) == ("a", 1)
    assert run.head.wake_ms == run.head.lease_until_ms
    landed(write(store, run.foresee(fence=1, rest=Rest(wake_ms=run.head.wake_ms))))
    assert (run.head.holder, run.head.lease_until_ms, run.head.fence) == (None, None, 1)
    landed(write(store, StateBatch((), nudges=(run.id,))))
    assert len(landed(write(store, ClaimDue(("orders",), "b", HOUR, 9))).answers) == 1
    landed(write(store, StateBatch((), nudges=(run.id,))))
    landed(write(store, run.foresee(fence=2, rest=Rest(wake_ms=9**15))))
    assert run.head.wake_ms is not None
    assert run.head.wake_ms <= store.now_ms(), "a nudge that came while it was leased makes it due at once"
    landed(write(store, run.foresee(rest=Rest(is_final=True))))
    assert run.head.wake_ms is None


def test_due_executions_that_another_process_is_at_are_passed_over(
    store: PostgresStore, other: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    for name in ("one", "two"):
        landed(write(store, Execution(store, name).creation(creation=Creation("orders", 3, is_runnable=True))))
    with postgres_server.connect() as connection, connection.transaction():
        connection.execute(f"SELECT 1 FROM {postgres_schema}.executions WHERE execution_id = 'one' FOR UPDATE")
        leases = landed(write(store, ClaimDue(("orders",), "a", HOUR, 9))).answers
    assert [lease.name for lease in leases] == ["two"]
    assert [lease.name for lease in landed(write(other, ClaimDue(("orders", "mail"), "b", HOUR, 9))).answers] == ["one"]


# Names and sizes.


def test_names_that_no_index_can_hold_are_kept_apart(store: PostgresStore) -> None:
    """T46: paths of scopes and names of locks grow beyond what a B-tree takes; keys of 512 bytes fit."""
    long = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 256
    scopes = [Scope.of_step(long, long, workspace=f"{long[:-1]}{end}").path for end in "ab"]
    assert len(scopes[0]) > 4_000
    for number, scope in enumerate(scopes):
        write_state(store, put(long, number, scope=scope))
    assert [content(store, scope) for scope in scopes] == [{long: 0}, {long: 1}]
    assert set(store.scopes()) == set(scopes)
    fences = {acquire(store, f"conversation/{long * 9}/{end}").fence for end in "ab"}
    assert len(fences) == 2
    for end in "ab":
        Execution(store, long[:-1] + end, workspace=long).create().land(commit_id=long)


@pytest.mark.parametrize("is_long_way", [False, True])
def test_id_that_fits_no_index_is_refused_alone_and_its_group_lands(
    is_long_way: bool, open_url: OpenUrl, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_url(postgres_url, key_bytes=10_000)
    if is_long_way:
        take_the_long_way(monkeypatch)
    rng = random.Random(7)
    huge = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(3_000))
    good = Execution(store).creation()
    bad = Execution(store, "other").creation(execution_id=huge)
    outcomes = store.write([bad, good, StateBatch((put(huge),)), StateBatch((put("fits"),))])
    refused(outcomes[0], LimitExceeded)
    refused(outcomes[2], LimitExceeded)
    landed(outcomes[1])
    landed(outcomes[3])


@pytest.mark.parametrize("name", ["nul\0", "half \ud800"])
def test_id_that_is_no_text_is_refused_alone_and_its_group_lands(name: str, store: PostgresStore) -> None:
    units = [
        Execution(store, "other").creation(execution_id=name),
        Execution(store).creation(),
        Deletion(name),
        Acquire(name, "a", 1),
    ]
    outcomes = store.write(units)
    landed(outcomes[1])
    for position in (0, 2, 3):
        refused(outcomes[position], InvalidInput)
    alone = store.write([Execution(store, "third").creation(execution_id=name), Execution(store, "fourth").creation()])
    refused(alone[0], InvalidInput)
    landed(alone[1])
    if "\ud800" in name:
        with pytest.raises(InvalidInput):
            store.head(name)
    store.check()


def test_every_text_is_compared_by_its_bytes_whatever_the_database_prefers(
    store: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """T46: a database with a language of its own sorts and compares differently, and must not here."""
    texts = "SELECT table_name, column_name, collation_name FROM information_schema.columns"
    ours = f"table_schema = '{postgres_schema}' AND table_name <> 'migrations' AND data_type = 'text'"
    with postgres_server.connect() as connection:
        columns = connection.execute(f"{texts} WHERE {ours}").fetchall()
    assert len(columns) > 10
    assert [column for column in columns if column[2] != "C"] == []
    keys = ["B", "a", "Z", "\u00e9", "e\u0301", "z", "\U0001f600", "\uffee"]
    write_state(store, *(put(key) for key in keys))
    assert [key for key, _ in store.scan(SCOPE)] == sorted(keys)


# Notifications.


def heard(topics: queue.Queue[str], topic: str) -> None:
    """Wait until a topic is heard."""
    while topics.get(timeout=_PATIENCE_SECONDS) != topic:
        pass


@pytest.mark.parametrize("is_long_way", [False, True])
@pytest.mark.parametrize("topic", ["lock", "state", "due"])
def test_listener_is_told_by_a_write_of_another_process(
    topic: str, is_long_way: bool, store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_long_way:
        take_the_long_way(monkeypatch)
    run = Execution(other, workflow="orders").create(
        creation=Creation("orders", 3, holder="a", lease_seconds=HOUR, is_runnable=True)
    )
    lease, topics = acquire(other), queue.Queue[str]()
    end = store.listen(topics.put)
    heard(topics, "")
    units = {"lock": Unlock("door", "a", lease.fence), "state": StateBatch((put("a"),)), "due": Release(run.id, "a", 1)}
    landed(write(other, units[topic]))
    heard(topics, topic)
    assert topics.empty()
    end()


def test_listener_is_told_once_for_a_group_and_not_of_what_was_refused(store: PostgresStore, other: PostgresStore) -> None:
    topics = queue.Queue[str]()
    store.listen(topics.put)
    heard(topics, "")
    refused(write(other, StateBatch((put("a", expected=3),))), Conflict)
    Execution(other).create().grow(2)
    other.write([StateBatch((put(f"key-{number}"),)) for number in range(5)])
    heard(topics, "state")
    lease = acquire(other)
    landed(write(other, Unlock("door", "a", lease.fence)))
    assert topics.get(timeout=_PATIENCE_SECONDS) == "lock"


def test_listener_comes_back_when_its_connection_is_ended(
    store: PostgresStore, other: PostgresStore, postgres_server: PostgresServer
) -> None:
    """T41: and says so, since whatever was sent meanwhile is lost."""
    topics = queue.Queue[str]()
    store.listen(topics.put)
    heard(topics, "")
    with postgres_server.connect() as connection:
        ended = connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchall()
    assert set(ended) == {(True,)}  # the one of the test before may be on its way out
    heard(topics, "")
    write_state(other, put("a"))
    heard(topics, "state")


def test_listeners_of_one_store_share_a_connection_and_other_schemas_are_not_heard(
    store: PostgresStore, open_url: OpenUrl, fresh_postgres_url: str, postgres_server: PostgresServer
) -> None:
    first, second = queue.Queue[str](), queue.Queue[str]()
    end = store.listen(first.put)
    heard(first, "")
    store.listen(second.put)
    end()
    write_state(open_url(fresh_postgres_url), put("a"))
    write_state(store, put("a"))
    heard(second, "state")
    assert (first.empty(), second.empty()) == (True, True)
    with postgres_server.connect() as connection:
        assert connection.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchone() == (1,)
    store.close()
    with postgres_server.connect() as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
    assert not [thread for thread in threading.enumerate() if thread.name == "stepwell-listener"]


# Row-level security.


@pytest.fixture
def tenant(postgres_server: PostgresServer) -> Iterator[str]:
    """A role that may read every table, and is nobody's owner."""
    with postgres_server.connect() as connection:
        connection.execute("CREATE ROLE tenant LOGIN")
        yield "tenant"
        connection.execute("DROP OWNED BY tenant; DROP ROLE tenant")


def test_role_of_one_workspace_sees_no_row_of_another(
    open_url: OpenUrl, postgres_server: PostgresServer, fresh_postgres_url: str, tenant: str
) -> None:
    """T57's second net: whatever the query forgets, the server does not show."""
    schema, store = parse_url(fresh_postgres_url).schema, open_url(f"{fresh_postgres_url}&rls=on")
    for workspace in ("acme", "rival"):
        run = Execution(store, f"of-{workspace}", workspace=workspace).create()
        run.land(snapshot=run.snapshot())
        write_state(store, put("k", workspace, scope=Scope.of_workspace(workspace).path))
    write_state(store, put("k", scope=Scope.globals().path))
    acquire(store)
    tables = ("executions", "commits", "snapshots", "state_scopes", "state_entries", "locks")
    with postgres_server.connect() as owner:
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO tenant; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO tenant")
        counted = [owner.execute(f"SELECT count(*) FROM {schema}.{name}").fetchone() for name in tables]
    assert counted == [(2,), (4,), (2,), (3,), (3,), (1,)]
    with psycopg.connect(postgres_server.dsn.replace("stepwell@", "tenant@"), autocommit=True) as connection:
        nothing = [connection.execute(f"SELECT count(*) FROM {schema}.{name}").fetchone() for name in tables]
        assert nothing == [(0,)] * 6
        connection.execute("SET stepwell.workspace = 'acme'")
        own = [connection.execute(f"SELECT count(*) FROM {schema}.{name}").fetchone() for name in tables]
        assert own == [(1,), (2,), (1,), (1,), (1,), (0,)]
        assert connection.execute(f"SELECT workspace_id FROM {schema}.executions").fetchall() == [("acme",)]
        assert connection.execute(f"UPDATE {schema}.executions SET status = 'FAILED' WHERE workspace_id = 'rival'").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"UPDATE {schema}.executions SET workspace_id = 'rival'")
    assert walk(store, "of-rival").ok


def test_row_security_can_be_switched_off_and_hides_nothing_from_the_engine(
    open_url: OpenUrl, postgres_server: PostgresServer, fresh_postgres_url: str, tenant: str
) -> None:
    schema, url = parse_url(fresh_postgres_url).schema, f"{fresh_postgres_url}&rls=on"
    Execution(open_url(url)).create()
    with postgres_server.connect() as owner:
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO tenant; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO tenant")
    with pytest.raises(StoreUnavailable, match="row-level security hides rows from user 'tenant'"):
        open_url(postgres_server.url(schema, user="tenant"))
    open_url(fresh_postgres_url.replace("rls=on", ""))
    with pytest.raises(StoreUnavailable, match="hides rows"):
        open_url(postgres_server.url(schema, user="tenant"))
    open_url(f"{fresh_postgres_url}&rls=off")
    assert open_url(postgres_server.url(schema, user="tenant")).head("order-7") is not None


# Poolers.


def test_store_works_without_prepared_statements_and_leaves_nothing_in_its_sessions(open_url: OpenUrl, postgres_url: str) -> None:
    """Behind a PgBouncer in transaction mode the next transaction may find itself in another session."""
    store = open_url(f"{postgres_url}&prepare=off")
    run = Execution(store).create().grow(3)
    lease = claim(store, run.id)
    run.land(fence=lease.fence, ops=(Increment(SCOPE, "n"),))
    landed(write(store, Unlock("door", "a", acquire(store).fence)))
    assert walk(store, run.id).ok
    left = """SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
                     current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
                     (SELECT count(*) FROM pg_class WHERE relpersistence = 't')"""
    link = store._writer._fresh_link()
    assert link._database.execute(left).fetchall() == [(0, 0, "0", "0", 0)]


def test_session_that_a_pooler_took_from_another_schema_runs_no_statement_of_that(
    store: PostgresStore, open_url: OpenUrl, postgres_server: PostgresServer
) -> None:
    """The same names are prepared there, for other tables; what they would write to belongs to somebody else."""
    schema = postgres_server.new_schema()
    theirs = open_url(postgres_server.url(schema))
    our_run, their_run = (Execution(each, "run").create().grow(2) for each in (store, theirs))
    before = everything(theirs, "run")
    ours, session = store._writer._fresh_link(), theirs._writer._fresh_link()
    session._statements, store._writer._link = ours._statements, session
    with pytest.raises(StoreUnavailable, match="prepare=off"):
        store.write([their_run.commit()])
    assert everything(theirs, "run") == before
    store._writer._link = ours
    our_run.land()
    theirs.close()
    postgres_server.drop_schema(schema)


# More than one process.


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_every_isolation_level_gives_the_same_results(isolation: str, open_url: OpenUrl, postgres_url: str) -> None:
    """T15: head-row lock, revision and fence decide; a stricter level only makes for more tries."""
    url = f"{postgres_url}&options=-c%20default_transaction_isolation={isolation.replace(' ', '%5C%20')}"
    stores = [open_url(url) for _ in range(3)]
    run = Execution(stores[0]).create()
    wins = [0] * len(stores)

    def race(number: int) -> None:
        store, view = stores[number], Execution(stores[number])
        for turn in range(25):
            view.follow()
            outcome = write(store, view.commit(ops=(Increment(SCOPE, "wins"),)))
            wins[number] += isinstance(outcome, Written)
            # Write skew: both see that nobody is on duty, and both would go on duty.
            write(store, StateBatch((put(f"duty-{turn}", number, expected=0, strict=False), Increment(SCOPE, f"asked-{turn}"))))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = content(stores[0])
    assert run.head.revision == sum(wins) == found["wins"]
    assert [found[f"asked-{turn}"] for turn in range(25)] == [3] * 25
    assert walk(stores[0], run.id).ok
    assert stores[0].totals(SCOPE).revision == max(entry.revision for _, entry in stores[0].scan(SCOPE))


def together(*acts: Callable[[], T]) -> list[T]:
    """Have several things done at the same moment; what came of each."""
    gate = threading.Barrier(len(acts))
    with ThreadPoolExecutor(len(acts)) as pool:
        done = [pool.submit(lambda act=act: (gate.wait(), act())[1]) for act in acts]
        return [each.result() for each in done]


def test_every_race_for_a_lease_has_exactly_one_winner(store: PostgresStore, other: PostgresStore) -> None:
    """T31: also if both found the execution free."""
    for number in range(40):
        run = Execution(store, f"run-{number}").create()
        first, second = Claim(run.id, "a", HOUR), Claim(run.id, "b", HOUR)
        outcomes = together(lambda unit=first: write(store, unit), lambda unit=second: write(other, unit))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LockHeld", "Written"]
        assert run.head.fence == 1


@pytest.mark.parametrize("is_long_way", [False, True])
def test_groups_of_the_same_executions_in_opposite_order_never_wait_in_a_circle(
    is_long_way: bool,
    store: PostgresStore,
    other: PostgresStore,
    postgres_server: PostgresServer,
    postgres_schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are stopped halfway: if each held what the other needs next, neither could go on."""
    if is_long_way:
        take_the_long_way(monkeypatch)
    since = len(postgres_server.complaints())
    runs = [Execution(store, f"run-{number}").create() for number in range(9)]
    forth, back = [run.commit() for run in runs], [run.commit() for run in reversed(runs)]
    with postgres_server.connect() as blocker, ThreadPoolExecutor(2) as pool:
        with blocker.transaction():
            blocker.execute(f"SELECT 1 FROM {postgres_schema}.executions WHERE execution_id = 'run-4' FOR UPDATE")
            writes = [pool.submit(store.write, forth), pool.submit(other.write, back)]
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while blocker.execute(waiting).fetchone() != (2,):
                blocker.execute("SELECT pg_stat_clear_snapshot()")
        outcomes = [outcome for each in writes for outcome in each.result()]
    assert sum(isinstance(outcome, Written) for outcome in outcomes) == len(runs)
    assert "deadlock detected" not in postgres_server.complaints(since)


def test_processes_that_write_the_same_things_in_any_order_never_wait_in_a_circle(
    open_url: OpenUrl, postgres_url: str, postgres_server: PostgresServer
) -> None:
    since = len(postgres_server.complaints())
    stores = [open_url(postgres_url) for _ in range(3)]
    for number in range(6):
        Execution(stores[0], f"run-{number}").create()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed]
        try:
            for _ in range(40):
                units: list[Unit] = []
                for number in rng.sample(range(6), 4):
                    view = Execution(store, f"run-{number}")
                    view.follow()
                    units.append(rng.choice([view.commit, lambda view=view: view.commit(ops=(Increment(SCOPE, view.id),))])())
                    units.append(StateBatch((Increment(Scope.custom(f"s{rng.randrange(4)}").path, "n"), put("x", scope=SCOPE))))
                    units.append(Acquire(f"lock-{rng.randrange(4)}", f"{seed}", 0.001))
                rng.shuffle(units)
                store.write(
                    units if rng.random() < 0.5 else [unit for unit in units if isinstance(unit, Commit) and not unit.ops] or units
                )
        except Exception as error:  # noqa: BLE001 - the test looks at what there is
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert "deadlock detected" not in postgres_server.complaints(since)
    for number in range(6):
        assert walk(stores[0], f"run-{number}").ok
