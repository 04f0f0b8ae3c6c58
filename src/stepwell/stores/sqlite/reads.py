"""Reads of a SQLite file: executions, scoped state and the queue, on whatever connection each is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from stepwell.contract.store import ExecutionQuery
from stepwell.model.checksum import unseal
from stepwell.model.commit import Head, Loaded, StoredCommit
from stepwell.model.ids import revision_in
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry, prefix_end
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.status import Status
from stepwell.stores.sql_files import read_queries
from stepwell.stores.sqlite.connection import Database
from stepwell.stores.sqlite.queue import END_OF_VIEW, ONE_VIEW, SqliteQueueReads

__all__ = ["SqliteReads"]

T = TypeVar("T")
SQL = read_queries("stepwell.stores.sqlite")
_MOST_REVISIONS = 2**32 - 1
_NO_LIMIT = 2**62


class SqliteReads(SqliteQueueReads):
    """Reads of a store; it supplies the connection and the time."""

    def _rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._read(lambda db: db.rows(SQL[name], *arguments))

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        # A query takes 3 µs; a cache would first have to read SQLite's data version, which takes 2 µs.
        found = self._read(lambda db: [db.rows(SQL["head_digest"], execution_id) for execution_id in execution_ids])
        return [rows[0][0] if rows else None for rows in found]

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        return [row[0] for row in self._rows("nudged", msgspec.json.encode(execution_ids).decode())]

    def head(self, execution_id: str) -> Head | None:
        rows = self._rows("head", execution_id)
        return Head(*rows[0][:-1]) if rows else None

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        def query(db: Database) -> Loaded | None:
            db.rows(ONE_VIEW)
            try:
                return _load(db, execution_id, at, since)
            finally:
                db.rows(END_OF_VIEW)

        return self._read(query)

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        rows = self._of_execution(execution_id, "commits_between", after, _MOST_REVISIONS, limit)
        return [StoredCommit(*row) for row in rows]

    def base(self, execution_id: str) -> StoredSnapshot | None:
        head = self.head(execution_id)
        if head is None or head.base_revision < 0:
            return None
        rows = self._of_execution(execution_id, "snapshot_at", head.base_revision)
        return StoredSnapshot(*rows[0]) if rows else None

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        revision = revision_in(commit_id)
        rows = [] if revision is None else self._of_execution(execution_id, "commit_at", revision, commit_id)
        rows = rows or self._of_execution(execution_id, "commit_named", commit_id)
        if not rows:
            self._check_absence()
        return StoredCommit(*rows[0]) if rows else None

    def _check_absence(self) -> None:
        """Raise if a commit that no reader sees may be there all the same."""

    def _of_execution(self, execution_id: str, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a query about an execution that goes by its number."""

        def query(db: Database) -> list[tuple[Any, ...]]:
            heads = db.rows(SQL["head"], execution_id)
            return db.rows(SQL[name], heads[0][-1], *arguments) if heads else []

        return self._read(query)

    def find(self, query: ExecutionQuery) -> list[Head]:
        after_ms, after_id = query.after or (None, None)
        # Most executions are COMPLETED, and few have another status: that index leads to them past everything else.
        is_rare = query.status not in (None, Status.COMPLETED)
        name = "find_by_status" if is_rare else "find" if query.workspace_id is None else "find_in_workspace"
        rows = self._rows(name, query.workspace_id, query.workflow_id, query.status, after_ms, after_id, query.limit)
        return [Head(*row[:-1]) for row in rows]

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        now = self.now_ms()

        def query(db: Database) -> dict[str, StoredEntry]:
            found = ((key, db.rows(SQL["live_entry"], scope, key, now)) for key in keys)
            return {key: _entry(scope, key, rows[0]) for key, rows in found if rows}

        return self._read(query)

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        rows = self._rows("scan", scope, prefix, prefix_end(prefix), after, self.now_ms(), limit)
        return [(row[0], _entry(scope, row[0], row[1:])) for row in rows]

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        return [(row[0], _entry(scope, row[0], row[1:])) for row in self._rows("changes", scope, after)]

    def totals(self, scope: str) -> ScopeTotals:
        rows = self._rows("totals", scope)
        return ScopeTotals(*rows[0]) if rows else ScopeTotals()

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        return iter([row[0] for row in self._rows("scopes", workspace_id)])


def _load(db: Database, execution_id: str, at: int | None, since: int | None) -> Loaded | None:
    rows = db.rows(SQL["head"], execution_id)
    if not rows:
        return None
    head, number = Head(*rows[0][:-1]), rows[0][-1]
    upto = head.revision if at is None else at
    snapshots = db.rows(SQL["newest_snapshot"], number, upto) if since is None else []
    snapshot = StoredSnapshot(*snapshots[0]) if snapshots else None
    start = since if since is not None else -1 if snapshot is None else snapshot.revision
    commits = db.rows(SQL["commits_between"], number, start, upto, _NO_LIMIT)
    return Loaded(head, snapshot, [StoredCommit(*row) for row in commits])


def _entry(scope: str, key: str, row: Sequence[Any]) -> StoredEntry:
    return unseal(scope, key, StoredEntry(row[0], row[1], row[2], row[3], bool(row[4]))).checked(scope, key)
