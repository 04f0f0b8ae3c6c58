"""Plans of the PostgreSQL store: the server keeps one for as long as a session lasts, however the tables grow meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres_server import PostgresServer

from stepwell import Stepwell, step, workflow
from stepwell.stores.postgres.statements import statements_of

MANY = 12
"""More than the five times that the server plans a statement anew before it may keep a plan."""
SCANS = """
SELECT relname, seq_scan FROM pg_stat_user_tables
WHERE schemaname = %s AND relname IN ('items', 'executions', 'commits') ORDER BY relname
"""
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
SETTINGS = "SELECT current_setting('enable_seqscan'), current_setting('jit')"


@step
def shout(text: str) -> str:
    return text.upper()


@workflow
def call_out(text: str) -> str:
    return shout(text)


@pytest.fixture
def outside(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        yield connection


def sessions(outside: psycopg.Connection[Any]) -> set[tuple[Any, ...]]:
    return {*outside.execute(SESSIONS).fetchall()}


def scans(outside: psycopg.Connection[Any], schema: str, others: set[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """How often tables were gone through as a whole, when all sessions but the others have ended, and told of it."""
    while not sessions(outside) <= others:
        pass
    return outside.execute(SCANS, [schema]).fetchall()


def test_commands_scan_no_table_that_was_empty_when_analysed(
    postgres_url: str, postgres_schema: str, outside: psycopg.Connection[Any]
) -> None:
    others = sessions(outside)
    with Stepwell(postgres_url) as well:
        assert well.start(call_out, "a").result(60) == "A"
        assert well.enqueue(call_out, "a").result(60) == "A"
    for table in ("items", "executions", "commits"):
        outside.execute(f"DELETE FROM {postgres_schema}.{table}")
        outside.execute(f"ALTER TABLE {postgres_schema}.{table} SET (autovacuum_enabled = false)")  # or it analyses meanwhile
        outside.execute(f"VACUUM ANALYZE {postgres_schema}.{table}")
    before = scans(outside, postgres_schema, others)
    with Stepwell(postgres_url) as well:
        for _ in range(MANY):
            assert well.enqueue(call_out, "b").result(60) == "B"
            run = well.start(call_out, "c")
            assert run.result(60) == "C"
            assert run.verify().ok
    assert scans(outside, postgres_schema, others) == before


@pytest.mark.parametrize(("is_ours", "settings"), [(True, ("off", "off")), (False, ("on", "on"))])
def test_session_of_a_pooler_is_left_as_it_is(
    outside: psycopg.Connection[Any], postgres_schema: str, is_ours: bool, settings: tuple[str, str]
) -> None:
    """There the process that a connection is told of is not the one that serves it."""
    outside.execute("SET jit = on")
    process = outside.info.backend_pid if is_ours else -1
    psycopg.RawCursor(outside).execute(statements_of(postgres_schema)["keep_to_indexes"], [process])
    assert outside.execute(SETTINGS).fetchall() == [settings]


# Claimed items leave entries at the old end of the index of what waits, until the next vacuum.
PASSED = """
INSERT INTO {schema}.items (item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms,
                            run_at_ms, body_digest, attempts, max_attempts, fence, is_ready)
SELECT 'old-' || n, 'noisy', 'elsewhere', 1, 'e-' || n, '', 'default', 'QUEUED', 0, 0, 0, '', 0, 3, 0, true
FROM generate_series(1, 30000) AS n;
UPDATE {schema}.items SET status = 'COMPLETED', is_ready = false, finished_ms = 1 WHERE item_id <> 'old-30000';
"""
PAGES = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "


def pages(outside: psycopg.Connection[Any], call: str) -> int:
    """How many pages a call looks at, when the server has noted what it need not look at again."""
    found = 0
    for _ in range(3):
        with outside.transaction(force_rollback=True):
            row = outside.execute(PAGES + call).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        found = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return found


def test_claim_passes_over_what_was_claimed_before_only_once(
    postgres_url: str, postgres_schema: str, outside: psycopg.Connection[Any]
) -> None:
    with Stepwell(postgres_url, worker=False) as well:
        well.workspaces.put("noisy")
    outside.execute(f"ALTER TABLE {postgres_schema}.items SET (autovacuum_enabled = off)")
    claim = f"SELECT * FROM {postgres_schema}.claim_items('h', 1000, 10, '{{}}', '{{}}', 0)"
    before = pages(outside, claim)
    outside.execute(PASSED.replace("{schema}", postgres_schema))
    entries = pages(outside, f"SELECT count(*) FROM {postgres_schema}.items WHERE status = 'QUEUED' AND is_ready")
    assert entries > 100
    assert pages(outside, claim) < before + 1.5 * entries  # once, for the oldest
