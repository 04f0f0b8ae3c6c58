"""Features of the PostgreSQL store alone: names longer than an index, row-level security, poolers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest
from tests.integration.commit_paths import take_the_long_way
from tests.integration.conftest import OpenUrl, postgres_store
from tests.support.postgres_server import PostgresServer

from stepwell.errors import InvalidInput, LimitExceeded, StoreUnavailable
from stepwell.model.commit import (
    Acquire,
    Archiving,
    Deletion,
    StateBatch,
    Unlock,
)
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Increment
from stepwell.stores.postgres.store import PostgresStore
from stepwell.stores.postgres.url import parse_url
from stepwell.testing.conformance.samples import (
    SCOPE,
    SampleExecution,
    acquire,
    claim,
    content,
    everything,
    landed,
    put,
    refused,
    walk,
    write,
    write_state,
)

store = postgres_store


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
        SampleExecution(store, long[:-1] + end, workspace=long).create().land(commit_id=long)


@pytest.mark.parametrize("is_long_way", [False, True])
def test_id_that_fits_no_index_is_refused_alone_and_its_group_lands(
    is_long_way: bool, open_url: OpenUrl, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_url(postgres_url, key_bytes=10_000)
    if is_long_way:
        take_the_long_way(monkeypatch)
    rng = random.Random(7)
    huge = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(3_000))
    good = SampleExecution(store).creation()
    bad = SampleExecution(store, "other").creation(execution_id=huge)
    outcomes = store.write([bad, good, StateBatch((put(huge),)), StateBatch((put("fits"),))])
    for place in (0, 2):
        assert "more is not possible here" in str(refused(outcomes[place], LimitExceeded))  # whatever the limits allow
    landed(outcomes[1])
    landed(outcomes[3])


@pytest.mark.parametrize("name", ["nul\0", "half \ud800"])
def test_id_that_is_no_text_is_refused_alone_and_its_group_lands(name: str, store: PostgresStore) -> None:
    units = [
        SampleExecution(store, "other").creation(execution_id=name),
        SampleExecution(store).creation(),
        Deletion(name),
        Acquire(name, "a", 1),
    ]
    outcomes = store.write(units)
    landed(outcomes[1])
    for position in (0, 2, 3):
        refused(outcomes[position], InvalidInput)
    alone = store.write([SampleExecution(store, "third").creation(execution_id=name), SampleExecution(store, "fourth").creation()])
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
        run = SampleExecution(store, f"of-{workspace}", workspace=workspace).create()
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
    SampleExecution(open_url(url)).create()
    with postgres_server.connect() as owner:
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO tenant; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO tenant")
    with pytest.raises(StoreUnavailable, match="row-level security hides rows from user 'tenant'"):
        open_url(postgres_server.url(schema, user="tenant"))
    open_url(fresh_postgres_url.replace("rls=on", ""))
    with pytest.raises(StoreUnavailable, match="hides rows"):
        open_url(postgres_server.url(schema, user="tenant"))
    open_url(f"{fresh_postgres_url}&rls=off")
    assert open_url(postgres_server.url(schema, user="tenant")).head("order-7") is not None


# What is left of an execution.


def test_deletion_leaves_no_row_of_a_history_not_even_of_an_archived_one(
    store: PostgresStore, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    run = SampleExecution(store).create()
    run.land(commit_id="archived")
    landed(write(store, Archiving(run.id, run.snapshot())))
    run.land(commit_id="kept")
    landed(write(store, Deletion(run.id)))
    with postgres_server.connect() as connection:
        for table in ("commits", "snapshots"):
            assert connection.execute(f"SELECT count(*) FROM {postgres_schema}.{table}").fetchone() == (0,)


# Poolers.


def test_store_works_without_prepared_statements_and_leaves_nothing_in_its_sessions(open_url: OpenUrl, postgres_url: str) -> None:
    """Behind a PgBouncer in transaction mode the next transaction may find itself in another session."""
    store = open_url(f"{postgres_url}&prepare=off")
    run = SampleExecution(store).create().grow(3)
    lease = claim(store, run.id)
    run.land(fence=lease.fence, ops=(Increment(SCOPE, "n"),))
    landed(write(store, Unlock("door", "a", acquire(store).fence)))
    assert walk(store, run.id).ok
    left = """SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
                     current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
                     (SELECT count(*) FROM pg_class WHERE relpersistence = 't')"""
    link = store.writer.fresh_connection()
    assert link._database.execute(left).fetchall() == [(0, 0, "0", "0", 0)]


def test_session_that_a_pooler_took_from_another_schema_runs_no_statement_of_that(
    store: PostgresStore, open_url: OpenUrl, postgres_server: PostgresServer
) -> None:
    """The same names are prepared there, for other tables; what they would write to belongs to somebody else."""
    schema = postgres_server.new_schema()
    theirs = open_url(postgres_server.url(schema))
    our_run, their_run = (SampleExecution(each, "run").create().grow(2) for each in (store, theirs))
    before = everything(theirs, "run")
    ours, session = store.writer.fresh_connection(), theirs.writer.fresh_connection()
    session._statements, store.writer._connection = ours._statements, session
    with pytest.raises(StoreUnavailable, match="prepare=off"):
        store.write([their_run.commit()])
    assert everything(theirs, "run") == before
    store.writer._connection = ours
    our_run.land()
    theirs.close()
    postgres_server.drop_schema(schema)
