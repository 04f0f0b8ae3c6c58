"""The SQLite store: one file, one writer, any number of readers and processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import apsw

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, ExecutionQuery
from stepwell.errors import CommitUnknown, StoreFull, StoreUnavailable
from stepwell.faults import fault
from stepwell.model.commit import Head, Loaded, Outcome, StoredCommit, Unit
from stepwell.model.entry import ScopeTotals, StoredEntry, prefix_end
from stepwell.model.limits import Limits
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.sql import read_queries
from stepwell.stores.sqlite.connection import Settings, connect, migrate, parse_url, translate, translated
from stepwell.stores.sqlite.writing import Writing

__all__ = ["SQLiteStore"]

T = TypeVar("T")
SQL = read_queries("stepwell.stores.sqlite")
_MOST_READERS = 8
_NO_LIMIT = 2**62

# How soon a write of another process is noticed; a lock handed over between processes waits this long at most.
_LOOK_SECONDS = 0.01


class SQLiteStore:
    """Keeps executions and state in one SQLite file."""

    def __init__(self, url: str, clock: Clock, limits: Limits, *, vfs: str | None = None) -> None:
        self._settings: Settings = parse_url(url)
        self._clock, self._limits, self._vfs = clock, limits, vfs
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._readers: list[apsw.Connection] = []
        self._lent: set[apsw.Connection] = set()
        self._returned = threading.Condition(self._lock)
        self._is_closed = False

    def open(self) -> None:
        self._connect_writer()
        try:
            migrate(self._writer, self._settings)
        except BaseException:
            self._writer.close(True)
            raise

    def _connect_writer(self) -> None:
        self._writer = connect(self._settings, is_writer=True, vfs=self._vfs)
        self._cursor = self._writer.cursor()

    def close(self) -> None:
        with self._returned:
            if self._is_closed:
                return
            self._is_closed = True
            self._returned.wait_for(lambda: not self._lent)
            readers, self._readers = self._readers, []
        if self._process == os.getpid():
            for connection in (*readers, self._writer):
                connection.close()

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=True, has_blocking_writes=True)

    def durability(self) -> Durability:
        level = "full" if self._settings.synchronous == "FULL" else "normal"
        return Durability(level, f"SQLite synchronous={self._settings.synchronous}")

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def change_mark(self) -> object:
        return self._read(lambda db: (db.execute("PRAGMA data_version").get, db.total_changes()))

    def check(self) -> None:
        self._rows("totals", "")

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        """SQLite tells nobody: one thread looks at the file's change counter, which costs a few microseconds."""
        ended = threading.Event()

        def look() -> None:
            mark = self.change_mark()
            while not ended.wait(_LOOK_SECONDS):
                try:
                    seen, mark = mark, self.change_mark()
                except StoreUnavailable:
                    continue
                if seen != mark:
                    wake("")

        threading.Thread(target=look, name="stepwell-listener", daemon=True).start()
        return ended.set

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        self._check_usable()
        fault("store.before_begin")
        cursor = self._cursor
        with translated(self._settings):
            cursor.execute("BEGIN IMMEDIATE")
        try:
            fault("store.begun")
            writing = Writing(self._writer, cursor, SQL, self.now_ms(), self._limits)
            outcomes = [writing.write(unit) for unit in units]
            fault("store.before_commit")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, apsw.Error):
                raise translate(error, self._settings) from error
            raise
        self._commit(cursor)
        return outcomes

    def _commit(self, cursor: apsw.Cursor) -> None:
        try:
            cursor.execute("COMMIT")
            fault("store.committed")
        except apsw.Error as error:
            is_open = self._writer.in_transaction
            self._roll_back()
            translated_error = translate(error, self._settings)
            # Still open: SQLite gave up before the commit record was out. Otherwise a record may be in the log, unsynced.
            if is_open or isinstance(translated_error, StoreFull):
                raise translated_error from error
            raise CommitUnknown(f"{translated_error.message}; the commit may or may not have landed") from error
        except Exception as error:
            raise CommitUnknown from error

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except apsw.Error:
                # The handle is in doubt: a new one starts from what the file says.
                self._writer.close(True)
                self._connect_writer()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed; open it again")
        if self._process != os.getpid():
            raise StoreUnavailable(
                "the store was opened before a fork; a SQLite handle cannot be shared, so open it again in the child"
            )

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with self._returned:
            self._check_usable()
            self._returned.wait_for(lambda: self._readers or len(self._lent) < _MOST_READERS)
            connection = self._readers.pop() if self._readers else connect(self._settings, is_writer=False, vfs=self._vfs)
            self._lent.add(connection)
        try:
            with translated(self._settings):
                yield connection
        finally:
            with self._returned:
                self._lent.discard(connection)
                self._readers.append(connection)
                self._returned.notify()

    def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        with self._reader() as connection:
            return query(connection)

    def _rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._reader() as connection:
            return connection.execute(SQL[name], arguments).fetchall()  # pyright: ignore[reportArgumentType]

    def head(self, execution_id: str) -> Head | None:
        rows = self._rows("head", execution_id)
        return _head(rows[0]) if rows else None

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        with self._reader() as db:
            db.execute("BEGIN")
            try:
                return _load(db, execution_id, at, since)
            finally:
                db.execute("COMMIT")

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        return [StoredCommit(*row) for row in self._rows("commits_between", execution_id, after, _NO_LIMIT, limit)]

    def base(self, execution_id: str) -> StoredSnapshot | None:
        head = self.head(execution_id)
        rows = self._rows("snapshot_at", execution_id, head.base_revision) if head else []
        return StoredSnapshot(*rows[0]) if rows else None

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        rows = self._rows("commit_by_id", execution_id, commit_id)
        return StoredCommit(*rows[0]) if rows else None

    def find(self, query: ExecutionQuery) -> list[Head]:
        after_ms, after_id = query.after or (None, None)
        rows = self._rows("find", query.workspace_id, query.workflow_id, query.status, after_ms, after_id, query.limit)
        return [_head(row) for row in rows]

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        now = self.now_ms()
        with self._reader() as db:
            found = ((key, db.execute(SQL["live_entry"], (scope, key, now)).fetchall()) for key in keys)
            return {key: entry_of(rows[0]) for key, rows in found if rows}

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        rows = self._rows("scan", scope, prefix, prefix_end(prefix), after, self.now_ms(), limit)
        return [(row[0], entry_of(row[1:])) for row in rows]

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        return [(row[0], entry_of(row[1:])) for row in self._rows("changes", scope, after)]

    def totals(self, scope: str) -> ScopeTotals:
        rows = self._rows("totals", scope)
        return ScopeTotals(*rows[0]) if rows else ScopeTotals()

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        return iter([row[0] for row in self._rows("scopes", workspace_id)])


def _load(db: apsw.Connection, execution_id: str, at: int | None, since: int | None) -> Loaded | None:
    rows = db.execute(SQL["head"], (execution_id,)).fetchall()
    if not rows:
        return None
    head = _head(rows[0])
    upto = head.revision if at is None else at
    snapshots: list[Any] = []
    if since is None:
        snapshots = db.execute(SQL["newest_snapshot"], (execution_id, upto)).fetchall()
    snapshot = StoredSnapshot(*snapshots[0]) if snapshots else None
    start = since if since is not None else -1 if snapshot is None else snapshot.revision
    commits = db.execute(SQL["commits_between"], (execution_id, start, upto, _NO_LIMIT)).fetchall()
    return Loaded(head, snapshot, [StoredCommit(*row) for row in commits])


def _head(row: Sequence[Any]) -> Head:
    return Head(**dict(zip(_HEAD_COLUMNS, row, strict=True)))


_HEAD_COLUMNS = (
    "execution_id",
    "workspace_id",
    "workflow_id",
    "version",
    "status",
    "revision",
    "digest",
    "fence",
    "holder",
    "lease_until_ms",
    "base_revision",
    "signature",
    "parent_id",
    "created_ms",
    "updated_ms",
)


def entry_of(row: Sequence[Any]) -> StoredEntry:
    """An entry from the columns data, revision, expires_ms, ttl_ms, sliding."""
    return StoredEntry(row[0], row[1], row[2], row[3], bool(row[4]))
