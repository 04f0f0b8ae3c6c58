"""Retention of queue items on PostgreSQL: how much is read to find the old ones among all that have ended."""

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

WORKSPACES, EACH = 20, 100
NOW = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
MADE = """
INSERT INTO {schema}.workspaces (workspace_id, tier, created_ms)
SELECT 'quiet-' || number, 'startup', 0 FROM generate_series(1, {workspaces}) AS number
"""
PENDING = """
INSERT INTO {schema}.items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms,
                            run_at_ms, body_digest, max_attempts, is_ready)
SELECT 'item-' || number, 'quiet-' || 1 + number % {workspaces}, 'orders', 1, 'run-' || number, '', 'default', 'QUEUED', 0, 0, 0,
       '', 3, true
FROM generate_series(1, {workspaces} * {each}) AS number
"""
ENDED = "UPDATE {schema}.items SET status = 'COMPLETED', finished_ms = {now} - 1000"
AGED = "UPDATE {schema}.items SET finished_ms = 1 WHERE item_id IN ('item-7', 'item-70', 'item-700')"
READS = "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = %s AND relname = 'items'"


@pytest.fixture
def connection(postgres_server: PostgresServer, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """To an empty store."""
    store = PostgresStore(postgres_url, SystemClock(), Limits())
    store.open()
    store.close()
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        yield connection


def drop_old(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    """How often dropping what ended an hour ago scans the whole table, and how many rows it fetches by an index."""
    text, names = statements_of(schema)["drop_items"].decode(), [f"quiet-{number}" for number in range(1, WORKSPACES + 1)]
    with connection.transaction():
        [(scans, fetched)] = connection.execute(READS, [schema]).fetchall()
        psycopg.RawCursor(connection).execute(text, [names, ["COMPLETED"], 3_600_000, 1000, 0])
        [(scans_after, fetched_after)] = connection.execute(READS, [schema]).fetchall()
    return scans_after - scans, fetched_after - fetched


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_old_items_are_found_without_going_through_all_that_have_ended(
    connection: psycopg.Connection[Any], postgres_schema: str, mode: str
) -> None:
    """The server believes that none has ended, as it does between a load and its next look at the table."""
    words = {"schema": postgres_schema, "workspaces": WORKSPACES, "each": EACH, "now": NOW}
    for text in (MADE, PENDING, "VACUUM ANALYZE {schema}.items", ENDED, AGED, f"SET plan_cache_mode = force_{mode}_plan"):
        connection.execute(text.format(**words))
    scans, fetched = drop_old(connection, postgres_schema)
    [(left,)] = connection.execute(f"SELECT count(*) FROM {postgres_schema}.items").fetchall()
    assert left == WORKSPACES * EACH - 3
    assert (scans, fetched < 5 * WORKSPACES) == (0, True)
