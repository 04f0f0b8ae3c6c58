"""Opening a PostgreSQL store: what a URL may say, and every way in which the server can be the wrong one."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.integration.conftest import OpenUrl
from tests.support.postgres_server import PASSWORD, PostgresServer
from tests.support.proxy import Proxy, Verdict

from stepwell.clock import FakeClock
from stepwell.errors import InvalidInput, StoreForeign, StoreUnavailable, StoreUnsafe
from stepwell.model.limits import Limits
from stepwell.stores.postgres.url import parse_url
from stepwell.stores.url import store_of
from stepwell.testing.conformance.samples import SampleExecution, landed, write


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


def refusal(open_url: OpenUrl, url: str, kind: type[StoreUnavailable] = StoreUnavailable) -> str:
    """Return the error of opening, which must come while the server is in this state."""
    with pytest.raises(kind) as caught:
        open_url(url)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_name_the_store(scheme: str, postgres_url: str) -> None:
    url = postgres_url.replace("postgresql://", f"{scheme}://")
    store = store_of(url, FakeClock(), Limits())
    store.open()
    store.check()
    store.close()


def test_driver_is_loaded_only_by_a_url_that_needs_it() -> None:
    check = "import stepwell, sys; assert 'psycopg' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_missing_driver_gives_the_line_that_installs_it() -> None:
    script = """
import sys
sys.modules["psycopg"] = None
from stepwell import InvalidInput, Stepwell
try:
    Stepwell("postgresql://localhost/app")
except InvalidInput as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert "run pip install 'stepwell[postgres]'" in done.stdout


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("schema=", "schema is a name of 1 to 63 bytes"),
        (f"schema={'x' * 64}", "schema is a name of 1 to 63 bytes"),
        ("schema=pg_mine", "does not start with pg_"),
        ("connect_timeout=1", "connect_timeout is a number from 2 to 600"),
        ("connect_timeout=soon", "connect_timeout is a number from 2 to 600"),
        ("reply_timeout=nan", "reply_timeout must be from 0.1 seconds to 86400"),
        ("pool_size=0", "pool_size is a number from 1 to 1000"),
        ("pool_size=2.5", "pool_size is a number from 1 to 1000"),
        ("rls=yes", "rls is on or off"),
        ("prepare=1", "prepare is on or off"),
        ("colour=red", "colour"),
    ],
)
def test_option_that_means_nothing_is_refused(option: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_url(f"postgresql://me:secret@localhost/app?{option}")


def test_options_of_libpq_and_ours_go_where_they_belong() -> None:
    settings = parse_url("postgresql://me:p%40ss@db:6543/app?schema=wells&sslmode=require&application_name=my%20app&pool_size=7")
    assert (settings.schema, settings.pool_size, settings.user, settings.database) == ("wells", 7, "me", "app")
    given = psycopg.conninfo.conninfo_to_dict(settings.conninfo)
    assert (given["password"], given["sslmode"], given["application_name"]) == ("p@ss", "require", "my app")
    assert not given.keys() & {"schema", "pool_size"}
    assert "p@ss" not in settings.place


def test_several_hosts_mean_the_one_that_can_be_written_to() -> None:
    given = psycopg.conninfo.conninfo_to_dict(parse_url("postgresql://me@one:1,two:2/app").conninfo)
    assert (given["host"], given["port"], given["target_session_attrs"]) == ("one,two", "1,2", "read-write")


def test_schema_may_have_any_name(postgres_server: PostgresServer, open_url: OpenUrl) -> None:
    """T46: a name is an identifier wherever it is used, and never a piece of a statement."""
    name = 'it\'s "my" schema; DROP TABLE x --'
    try:
        store = open_url(postgres_server.url("x").replace("schema=x", f"schema={name.replace(' ', '%20').replace(';', '%3B')}"))
        SampleExecution(store).create().grow(2)
        landed(write(store, SampleExecution(store, "other").creation()))
        with postgres_server.connect() as connection:
            found = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", (name,)).fetchone()
        assert found == (1,)
    finally:
        postgres_server.drop_schema(name)


def test_server_that_is_away_is_said_to_be(open_url: OpenUrl, proxy: Proxy, postgres_server: PostgresServer) -> None:
    assert "127.0.0.1:1, database 'postgres'" in refusal(open_url, postgres_server.url("x", port=1))
    assert "cannot be reached" in refusal(open_url, "postgresql://nobody@nowhere.invalid/app")


def test_server_that_does_not_answer_is_given_up_after_the_timeout(
    open_url: OpenUrl, proxy: Proxy, postgres_server: PostgresServer
) -> None:
    proxy.on_request = lambda _: Verdict.HOLD
    assert "cannot be reached" in refusal(open_url, postgres_server.url("x", port=proxy.port, connect_timeout=2))


def test_wrong_password_is_said_to_be(open_url: OpenUrl, postgres_server: PostgresServer, fresh_postgres_url: str) -> None:
    words = refusal(open_url, postgres_server.url("x", user="guarded:wrong"))
    assert "password for user 'guarded' is wrong" in words
    assert "28P01" in words
    assert ":wrong" not in words
    with postgres_server.connect() as connection:
        connection.execute("GRANT CREATE ON DATABASE postgres TO guarded")
    schema = parse_url(fresh_postgres_url).schema
    open_url(postgres_server.url(schema, user=f"guarded:{PASSWORD.replace(' ', '%20')}")).check()


def test_unknown_user_and_unknown_database_are_said_to_be(open_url: OpenUrl, postgres_server: PostgresServer) -> None:
    assert "refuses user 'stranger'" in refusal(open_url, postgres_server.url("x", user="stranger"))
    assert "there is no database 'elsewhere'" in refusal(open_url, postgres_server.url("x", database="elsewhere"))


def test_refused_connections_leave_no_descriptor_open(open_url: OpenUrl, postgres_server: PostgresServer) -> None:
    url = postgres_server.url("x", database="elsewhere")
    refusal(open_url, url)
    gc.collect()
    before = set(Path("/dev/fd").iterdir())
    for _ in range(20):
        refusal(open_url, url)
    gc.collect()
    assert len(set(Path("/dev/fd").iterdir()) - before) <= 1  # the listing's own


def test_server_without_a_connection_left_is_said_to_be(open_url: OpenUrl, postgres_server: PostgresServer) -> None:
    with postgres_server.connect() as connection:
        connection.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 1")
        url = postgres_server.url("x", user="crowded")
        with psycopg.connect(url.partition("?")[0]):
            assert "no connection left" in refusal(open_url, url)
        connection.execute("DROP ROLE crowded")


def test_version_that_is_too_old_is_named(open_url: OpenUrl, proxy: Proxy, postgres_server: PostgresServer) -> None:
    proxy.on_reply = lambda data: data.replace(b"server_version\x0018.", b"server_version\x0013.")
    words = refusal(open_url, postgres_server.url("x", port=proxy.port), StoreUnsafe)
    assert "is version 13." in words
    assert "PostgreSQL 14 or newer" in words


def test_read_only_replica_is_refused_before_anything_is_asked(open_url: OpenUrl) -> None:
    """T18: a store reads from what it writes to, so that nothing is decided on a state that lags behind."""
    with PostgresServer(is_standby=True) as standby:
        assert "is a read-only replica; point the URL at the primary" in refusal(open_url, standby.url("x"))


def test_database_in_another_encoding_is_refused(open_url: OpenUrl, postgres_server: PostgresServer) -> None:
    with postgres_server.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        assert "encoding is LATIN1" in refusal(open_url, postgres_server.url("x", database="latin"))
        connection.execute("DROP DATABASE latin")


def test_schema_with_tables_of_another_program_is_not_touched(
    open_url: OpenUrl, postgres_server: PostgresServer, fresh_postgres_url: str
) -> None:
    schema = parse_url(fresh_postgres_url).schema
    for table in ("orders", "executions", "migrations"):
        with postgres_server.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} (id int)")
            assert "tables of another program" in refusal(open_url, fresh_postgres_url, StoreForeign)
            left = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        assert left == [(table,)]
        postgres_server.drop_schema(schema)


def test_schema_that_an_administrator_made_empty_is_used(
    open_url: OpenUrl, postgres_server: PostgresServer, fresh_postgres_url: str
) -> None:
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {parse_url(fresh_postgres_url).schema}")
    SampleExecution(open_url(fresh_postgres_url)).create()


def test_user_without_the_right_to_make_a_schema_is_told_so(open_url: OpenUrl, postgres_server: PostgresServer) -> None:
    with postgres_server.connect() as connection:
        connection.execute("CREATE ROLE humble LOGIN")
        words = refusal(open_url, postgres_server.url(postgres_server.new_schema(), user="humble"))
        connection.execute("DROP ROLE humble")
    assert "user 'humble' lacks a right" in words


def test_health_check_names_the_server_that_went_away(open_url: OpenUrl, proxy: Proxy, postgres_url: str) -> None:
    schema = parse_url(postgres_url).schema
    store = open_url(f"postgresql://stepwell@127.0.0.1:{proxy.port}/postgres?schema={schema}&connect_timeout=2")
    store.check()
    proxy.on_request = lambda _: Verdict.CUT
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}, database 'postgres'"):
        store.check()
    proxy.on_request = lambda _: Verdict.PASS
    store.check()


def test_health_check_names_tables_that_are_missing(
    open_url: OpenUrl, postgres_server: PostgresServer, fresh_postgres_url: str
) -> None:
    store = open_url(fresh_postgres_url)
    postgres_server.drop_schema(parse_url(fresh_postgres_url).schema)
    with pytest.raises(StoreUnavailable, match="tables are missing"):
        store.check()


@pytest.mark.parametrize(
    ("setting", "level"),
    [("synchronous_commit=on", "full"), ("synchronous_commit=local", "full"), ("synchronous_commit=off", "normal")],
)
def test_durability_follows_from_the_servers_settings(
    setting: str, level: str, open_url: OpenUrl, postgres_server: PostgresServer, postgres_url: str
) -> None:
    store = open_url(f"{postgres_url}&options=-c%20{setting}")
    assert store.durability().level == level
    assert setting in store.durability().reason


def test_server_that_does_not_sync_is_not_called_durable(open_url: OpenUrl) -> None:
    with PostgresServer(fsync="off") as careless:
        store = open_url(careless.url("x"))
        assert store.durability().level == "none"
        assert "fsync=off" in store.durability().reason
        store.close()


def test_store_opened_before_a_fork_is_refused_in_the_child_only(postgres_url: str) -> None:
    script = f"""
import os
from stepwell.clock import SystemClock
from stepwell.errors import StoreUnavailable
from stepwell.model.limits import Limits
from stepwell.stores.postgres.store import PostgresStore
store = PostgresStore({postgres_url!r}, SystemClock(), Limits())
store.open(); store.check()
child = os.fork()
if child == 0:
    try:
        store.check()
    except StoreUnavailable as error:
        assert "before a fork" in str(error)
        store.close()
        del store
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
store.check(); store.close()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
