"""T49: a migration that is killed at any statement, made by two at once, or met by older and newer code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict

from stepwell.clock import FakeClock
from stepwell.errors import StoreForeign, StoreNewer, StoreUnavailable
from stepwell.model.limits import Limits
from stepwell.stores.postgres import migrations
from stepwell.stores.postgres.connection_pool import connect_database
from stepwell.stores.postgres.migrations import MIGRATIONS, Migration, migrate
from stepwell.stores.postgres.store import PostgresStore
from stepwell.stores.postgres.url import PostgresSettings, parse_url
from stepwell.testing.conformance.samples import SampleExecution, put, walk, write_state

LAST = MIGRATIONS[-1].number
NEXT = Migration(
    LAST + 1,
    f"{LAST + 1:04}_next",
    pre="""
-- Adds a column.
ALTER TABLE {schema}.executions ADD COLUMN colour text;
ALTER TABLE {schema}.commits ADD COLUMN weight bigint;
""",
    post="""
CREATE INDEX CONCURRENTLY IF NOT EXISTS executions_by_colour ON {schema}.executions (colour);
CREATE INDEX CONCURRENTLY IF NOT EXISTS commits_by_weight ON {schema}.commits (weight);
""",
)


class Site:
    """A schema to be migrated, seen from outside, and a way to it on which anything can happen."""

    def __init__(self, server: PostgresServer, url: str, proxy: Proxy) -> None:
        self.server, self.url, self.proxy, self.schema = server, url, proxy, parse_url(url).schema

    def migrate(self, *more: Migration, through_proxy: bool = False) -> None:
        """Bring the schema up to date, as opening a store does."""
        url = self.url.replace(f":{self.server.port}/", f":{self.proxy.port}/") if through_proxy else self.url
        settings = parse_url(url)
        database = connect_database(settings)
        try:
            migrate(database, settings, [*MIGRATIONS, *more])
        finally:
            database.close()

    def drop(self) -> None:
        self.server.drop_schema(self.schema)

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with self.server.connect() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def shape(self) -> list[tuple[object, ...]]:
        """Every column, index, policy, function and recorded migration of the schema."""
        return self.sql(f"""
            SELECT 'column', table_name, column_name, data_type, collation_name, is_nullable FROM information_schema.columns
            WHERE table_schema = '{self.schema}'
            UNION ALL SELECT 'index', c.relname, pg_get_indexdef(i.indexrelid), i.indisvalid::text, '', ''
            FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE c.relnamespace = '{self.schema}'::regnamespace
            UNION ALL SELECT 'policy', tablename, policyname, cmd, '', '' FROM pg_policies WHERE schemaname = '{self.schema}'
            UNION ALL SELECT 'function', proname, prosrc, '', '', '' FROM pg_proc WHERE pronamespace = '{self.schema}'::regnamespace
            UNION ALL SELECT 'migration', number::text, name, digest, is_done::text, '' FROM {self.schema}.migrations
            ORDER BY 1, 2, 3""")


@pytest.fixture
def site(postgres_server: PostgresServer, fresh_postgres_url: str) -> Iterator[Site]:
    with Proxy(postgres_server.port) as proxy:
        yield Site(postgres_server, fresh_postgres_url, proxy)


def cut_at(number: int) -> tuple[Callable[[bytes], Verdict], list[bytes]]:
    """A verdict that cuts the connection at the n-th message of its session that is a statement."""
    seen: list[bytes] = []

    def judge(data: bytes) -> Verdict:
        if data[:1] in (b"Q", b"P"):
            seen.append(data)
            if len(seen) == number:
                return Verdict.CUT
        return Verdict.PASS

    return judge, seen


def test_migration_killed_at_any_statement_is_finished_by_the_next(site: Site) -> None:
    """T49: at every statement of every part, old and new; the shape afterwards is that of one that was never disturbed."""
    site.migrate(NEXT)
    whole = site.shape()
    number = 0
    while True:
        number += 1
        site.drop()
        site.proxy.on_request, seen = cut_at(number)
        try:
            site.migrate(NEXT, through_proxy=True)
        except StoreUnavailable:
            site.migrate(NEXT)
            assert site.shape() == whole, seen[-1]
            continue
        assert len(seen) < number, "the cut was survived unseen"
        break
    assert number > len(migrations._statements(MIGRATIONS[0].pre)) + 4


def test_part_that_fails_in_the_middle_leaves_nothing_of_itself(site: Site) -> None:
    """T49: the version is bumped last, in the same transaction."""
    site.migrate()
    before = site.shape()
    broken = Migration(NEXT.number, "broken", pre="ALTER TABLE {schema}.commits ADD COLUMN weight bigint;\nSELECT 1 / 0;\n")
    with pytest.raises(StoreUnavailable, match="22012"):
        site.migrate(broken)
    assert site.shape() == before
    site.migrate(NEXT)


def test_two_processes_migrate_at_once_and_one_does_it(site: Site) -> None:
    """T49: also with the part that runs outside a transaction; both find a schema that is ready."""
    for more in ((), (NEXT,)):
        gate = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(lambda more=more, gate=gate: gate.wait() >= 0 and site.migrate(*more)) for _ in range(4)]:
                done.result()
    recorded = [(str(each.number), each.name) for each in (*MIGRATIONS, NEXT)]
    assert [row[1:3] for row in site.shape() if row[0] == "migration"] == recorded


def test_half_built_index_is_dropped_and_built_again(site: Site) -> None:
    """T49: a killed CREATE INDEX CONCURRENTLY leaves an invalid index, which IF NOT EXISTS would take for a whole one."""
    site.migrate(NEXT)
    whole = site.shape()
    site.sql(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{site.schema}.commits_by_weight'::regclass")
    site.sql(f"UPDATE {site.schema}.migrations SET is_done = false WHERE number = {NEXT.number}")
    assert site.shape() != whole
    site.migrate(NEXT)
    assert site.shape() == whole


def test_older_code_goes_on_working_while_newer_code_migrates_and_after(site: Site) -> None:
    """P7: a store that is open keeps its statements; a new process of the older version is told to upgrade."""
    store = PostgresStore(site.url, FakeClock(), Limits())
    store.open()
    run = SampleExecution(store).create().grow(3)
    site.migrate(NEXT)
    run.grow(3)
    write_state(store, put("a"))
    assert walk(store, run.id).ok
    store.close()
    with pytest.raises(StoreNewer, match=f"the schema is at {NEXT.number} and this Stepwell knows up to {LAST}; upgrade Stepwell"):
        site.migrate()


def test_table_that_is_in_use_is_waited_for_but_not_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """T49: lock_timeout is set, so that whoever comes after the migration does not wait behind it for long."""
    site.migrate()
    monkeypatch.setitem(migrations._SQL, "set_bounds", migrations._SQL["set_bounds"].replace("'3s'", "'20ms'"))
    with site.server.connect() as reader, reader.transaction():
        reader.execute(f"SELECT count(*) FROM {site.schema}.executions")
        with pytest.raises(StoreUnavailable, match="55P03"):
            site.migrate(NEXT)
    site.migrate(NEXT)


def test_released_migration_that_was_edited_is_noticed(site: Site) -> None:
    site.migrate(NEXT)
    edited = Migration(NEXT.number, NEXT.name, pre=NEXT.pre.replace("text", "bytea"), post=NEXT.post)
    with pytest.raises(StoreForeign, match=f"migration {NEXT.number} is not the one of this Stepwell"):
        site.migrate(edited)


@pytest.mark.parametrize("more", [(), (NEXT,)])
def test_schema_of_an_earlier_draft_is_refused_and_not_touched(site: Site, more: tuple[Migration, ...]) -> None:
    """T48: also one that had further migrations: it is not taken for a newer one."""
    site.migrate(*more)
    site.sql(f"UPDATE {site.schema}.migrations SET digest = 'draft' WHERE number = 1")
    before = site.shape()
    with pytest.raises(StoreForeign, match=r"migration 1 is not .*unreleased version\. Nothing was changed.* restore the backup"):
        site.migrate()
    assert site.shape() == before


def test_schema_that_is_ready_is_opened_without_a_lock(site: Site) -> None:
    """So that a process can start while another one is building an index for an hour."""
    site.migrate()
    settings: PostgresSettings = parse_url(site.url)
    with migrations._locked(settings):
        site.migrate()


def test_every_file_is_a_list_of_statements(site: Site) -> None:
    """Each ends with a semicolon at the end of a line, so that each is run, and can be killed, by itself."""
    for migration in MIGRATIONS:
        for statement in [*migrations._statements(migration.pre), *migrations._statements(migration.post)]:
            assert ";" not in migrations._BODY.sub("", statement).replace("; ", ""), statement
            assert statement.split()[0] in ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "COMMENT", "GRANT")
