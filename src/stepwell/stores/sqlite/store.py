"""SQLite store: one file, one writer, any number of readers and processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import apsw
import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, ExecutionQuery
from stepwell.errors import CommitUnknown, StoreUnavailable
from stepwell.fault_points import fault, fault_after_commit
from stepwell.model.checksum import unseal
from stepwell.model.commit import Commit, Head, Loaded, Outcome, StoredCommit, Unit, Written
from stepwell.model.ids import revision_in
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry, prefix_end
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.status import Status
from stepwell.process import process_id
from stepwell.stores.sql_files import read_queries
from stepwell.stores.sqlite.connection import Database, SqliteSettings, parse_url, translate
from stepwell.stores.sqlite.fast_path import are_steps, statement_of, step_row
from stepwell.stores.sqlite.listener import POLL_SECONDS, data_version, start_listener
from stepwell.stores.sqlite.queue import SqliteQueueReads
from stepwell.stores.sqlite.transaction import SqliteTransaction

__all__ = ["SQLiteStore"]

T = TypeVar("T")
SQL = read_queries("stepwell.stores.sqlite")
_WRITTEN = Written()
_MOST_READERS = 8
_MOST_REVISIONS = 2**32 - 1
_NO_LIMIT = 2**62


class SQLiteStore(SqliteQueueReads):
    """Store in one SQLite file."""

    def __init__(self, url: str, clock: Clock, limits: Limits, *, vfs: str | None = None) -> None:
        self._settings: SqliteSettings = parse_url(url)
        self._clock, self._limits, self._vfs = clock, limits, vfs
        self._process = process_id()
        self._writer: Database | None = None
        # A list's pop and append are atomic, so that a reader is lent and given back without a lock.
        self._readers: list[Database] = []
        self._numbers: dict[str, int] = {}
        """The numbers of executions by their ids. A number is never used twice, so a stale one finds no row and does no harm."""
        self._writing = threading.Lock()
        """Held while the writer's connection is in use."""
        self._is_open = self._is_closed = False
        self._has_stray = False
        """Whether the log may contain a commit record that no reader sees, and that a recovery would bring to light."""

    def open(self) -> None:
        self._process = process_id()
        writer = Database(self._settings, is_writer=True, vfs=self._vfs)
        try:
            writer.migrate()
        except BaseException:
            writer.close()
            raise
        self._writer, self._is_open = writer, True

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._process != process_id():
            return
        self._close_readers(0)
        with self._writing:  # the listener may be asking the writer's connection just now
            if self._writer is not None:
                self._writer.close()

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=True, has_blocking_writes=True)

    def durability(self) -> Durability:
        level = "full" if self._settings.synchronous == "FULL" else "normal"
        return Durability(level, f"SQLite synchronous={self._settings.synchronous}")

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def check(self) -> None:
        self._rows("totals", "")

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        return start_listener(Database(self._settings, is_writer=False, vfs=self._vfs), self._writer_version, wake)

    def _writer_version(self) -> object:
        """Return a value that changes only when another connection than the writer's commits; None while the writer is busy."""
        # A write that waits for another process's lock must not block the listener.
        if not self._writing.acquire(timeout=POLL_SECONDS):
            return None
        try:
            # With the connection, since each connection counts from its own start.
            return object() if self._writer is None else (self._writer, data_version(self._writer))
        finally:
            self._writing.release()

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        with self._writing:
            db = self._usable_writer()
            if db.is_in_transaction():
                # An interrupt came between the last statement and COMMIT. No caller has an outcome yet, so roll back.
                self._doubt()
                self._roll_back(db)
                db = self._usable_writer()
            fault("store.before_begin")
            if are_steps(units, self._numbers) and self._write_steps(db, units):
                return [_WRITTEN for _ in units]
            return self._write_transaction(db, units)

    def _write_steps(self, db: Database, steps: Sequence[Commit]) -> bool:
        """Write commits that only add receipts by one statement, which is a transaction by itself. This is the fast path.

        False: nothing was written, since one of them does not follow from its head; the general way finds out which.
        """
        rows = [step_row(self._numbers[step.execution_id], step) for step in steps]
        try:
            has_landed = db.run_all(*statement_of(SQL["commits"], rows))
        except apsw.Error as error:
            self._raise_unknown(db, error)
        except Exception as error:
            self._doubt()
            raise CommitUnknown from error  # the statement may have committed before the error
        if has_landed:
            self._announce()
        return has_landed

    def _write_transaction(self, db: Database, units: Sequence[Unit]) -> list[Outcome]:
        """Write any units, in order, in a transaction. This is the general way."""
        try:
            db.rows("BEGIN IMMEDIATE")
            fault("store.begun")
            # BEGIN may have waited for another process; a lease granted from an earlier time could be over already.
            transaction = SqliteTransaction(db, SQL, self._clock.now_ms(), self._limits, self._numbers)
            outcomes = transaction.write_all(units)
            fault("store.before_commit")
        except BaseException as error:
            self._doubt()
            self._roll_back(db)
            if isinstance(error, apsw.Error):
                raise translate(error, self._settings) from error
            raise
        self._commit(db)
        return outcomes

    def _doubt(self) -> None:
        """Forget cached numbers after an error."""
        self._numbers.clear()

    def _commit(self, db: Database) -> None:
        try:
            db.rows("COMMIT")
        except apsw.Error as error:
            self._raise_unknown(db, error)
        self._announce()

    def _announce(self) -> None:
        """Reach the fault point after COMMIT: an error from here on is a lost reply."""
        try:
            fault_after_commit()
        except BaseException:
            self._doubt()
            raise

    def _raise_unknown(self, db: Database, error: apsw.Error) -> NoReturn:
        """Raise for a failed COMMIT: an error if surely nothing was written, else ``CommitUnknown``."""
        was_open = db.is_in_transaction()
        self._doubt()
        self._roll_back(db)
        refusal = translate(error, self._settings)
        # Still open: SQLite gave up before the commit record was out. Otherwise a record may be in the log, unsynced.
        if was_open or not isinstance(error, apsw.IOError):
            raise refusal from error
        self._has_stray = True
        self._overwrite_stray()
        raise CommitUnknown(f"{refusal.message}; the commit may or may not have landed") from error

    def _overwrite_stray(self) -> None:
        """Write a row: it overwrites the record in the log whose sync failed, so that the present view stays.

        A fence is used up, since a write that changes nothing would not reach the log. Any thread may come here to ask about a
        commit, so it uses its own connection.
        """
        try:
            db = Database(self._settings, is_writer=True, vfs=self._vfs)
        except StoreUnavailable:
            return
        try:
            db.rows(SQL["next_fence"])
            self._has_stray = False
        except apsw.Error:
            return
        finally:
            db.close()

    def _roll_back(self, db: Database) -> None:
        if not db.is_in_transaction():
            return
        try:
            db.rows("ROLLBACK")
        except apsw.Error:
            # The connection is in doubt: the next write opens a new one, which starts from the file.
            db.close()
            self._writer = None

    def _usable_writer(self) -> Database:
        self._check_usable()
        if not self._is_open:
            raise StoreUnavailable("the store is not open; call open() first")
        if self._writer is None:
            self._writer = Database(self._settings, is_writer=True, vfs=self._vfs)
        return self._writer

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed; open it again")
        if self._process != process_id():
            raise StoreUnavailable("the store was opened before a fork, and SQLite handles cannot cross one; open it in the child")

    def _read(self, query: Callable[[Database], T]) -> T:
        """Run a query on a reader of its own: readers never wait for each other or for the writer."""
        self._check_usable()
        try:
            db = self._readers.pop()
        except IndexError:
            db = Database(self._settings, is_writer=False, vfs=self._vfs)
        try:
            return query(db)
        except apsw.Error as error:
            raise translate(error, self._settings) from error
        finally:
            self._give_back(db)

    def _give_back(self, db: Database) -> None:
        self._readers.append(db)
        if self._is_closed or len(self._readers) > _MOST_READERS:
            self._close_readers(0 if self._is_closed else _MOST_READERS)

    def _close_readers(self, kept: int) -> None:
        while len(self._readers) > kept:
            try:
                self._readers.pop().close()
            except IndexError:
                return

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
            db.rows("BEGIN")
            try:
                return _load(db, execution_id, at, since)
            finally:
                db.rows("COMMIT")

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
        if not rows and self._has_stray:
            self._overwrite_stray()
            if self._has_stray:
                raise StoreUnavailable("the disk failed under a commit, so this cannot be told until it works again; ask then")
        return StoredCommit(*rows[0]) if rows else None

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
