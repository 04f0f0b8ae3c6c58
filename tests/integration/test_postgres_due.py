"""Executions that are due on PostgreSQL: how much is read to find them among those that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres_server import PostgresServer

from stepwell.clock import SystemClock
from stepwell.model.limits import Limits
from stepwell.stores.postgres.statements import statements_of
from stepwell.stores.postgres.store import PostgresStore

WAITING = """
INSERT INTO {schema}.executions (execution_id, workspace_id, workflow_id, version, status, revision, digest, wake_ms, created_ms,
                                 updated_ms)
SELECT 'waiting-' || number, 'default', 'orders', 1, 'WAITING', 0, '', 4000000000000 + number, 0, 0
FROM generate_series(1, 5000) AS number
"""
DUE = "UPDATE {schema}.executions SET wake_ms = 1 WHERE execution_id IN ('waiting-7', 'waiting-70', 'waiting-700')"
READS = "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = %s AND relname = 'executions'"
STATISTICS = pytest.mark.parametrize("statistics", ["", "ANALYZE", "VACUUM ANALYZE"])
STATEMENTS = pytest.mark.parametrize(
    ("statement", "more"), [("lock_due", []), ("claim_due", ["holder", 1000])], ids=["lock", "claim"]
)


@pytest.fixture
def connection(postgres_server: PostgresServer, postgres_url: str, postgres_schema: str) -> Iterator[psycopg.Connection[Any]]:
    """To a store in which many executions wait and none is due."""
    store = PostgresStore(postgres_url, SystemClock(), Limits())
    store.open()
    store.close()
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(WAITING.format(schema=postgres_schema))
        yield connection


def settle(connection: psycopg.Connection[Any], schema: str, statistics: str, mode: str) -> None:
    """Set the server's statistics of the table, and for how many runs of a statement it plans."""
    if statistics:
        connection.execute(f"{statistics} {schema}.executions")
    connection.execute(f"SET plan_cache_mode = force_{mode}_plan")


def ask(connection: psycopg.Connection[Any], text: str, more: list[object]) -> list[tuple[Any, ...]]:
    return psycopg.RawCursor(connection).execute(text, [["orders"], 0, 100, [1], *more]).fetchall()


@STATISTICS
@STATEMENTS
def test_only_what_is_due_is_looked_at_however_many_wait(
    connection: psycopg.Connection[Any], postgres_schema: str, statement: str, more: list[object], statistics: str
) -> None:
    """A plan that was made when the table was empty, or the order of another index, would read all that wait."""
    connection.execute(DUE.format(schema=postgres_schema))
    settle(connection, postgres_schema, statistics, "generic")  # as it is for a statement that was run a few times
    with connection.transaction():
        rows = ask(connection, statements_of(postgres_schema)[statement].decode(), more)
        [(scans, fetched)] = connection.execute(READS, [postgres_schema]).fetchall()
    assert {row[0] for row in rows} == {"waiting-7", "waiting-70", "waiting-700"}
    assert (scans, fetched < 50) == (0, True)


@pytest.mark.parametrize("mode", ["generic", "custom"])
@STATISTICS
@STATEMENTS
def test_entries_of_what_was_due_once_are_not_passed_again_and_again(
    connection: psycopg.Connection[Any], postgres_schema: str, statement: str, more: list[object], statistics: str, mode: str
) -> None:
    """Until they are vacuumed, a scan of the index itself marks them for the next one; one for a bitmap does not."""
    connection.execute(f"UPDATE {postgres_schema}.executions SET wake_ms = 1")
    connection.execute(f"UPDATE {postgres_schema}.executions SET wake_ms = 4000000000000 + number")
    settle(connection, postgres_schema, statistics, mode)
    rows = ask(connection, f"EXPLAIN {statements_of(postgres_schema)[statement].decode()}", more)
    plan = "\n".join(str(row[0]) for row in rows)
    assert "Index Scan using executions_by_wake" in plan, plan
    assert "Bitmap Index Scan on executions_by_wake" not in plan, plan
    assert "Seq Scan" not in plan, plan
