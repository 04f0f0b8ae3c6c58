"""SQLite store: one file, one writer, any number of readers and processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NoReturn, TypeVar

import apsw

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, StoreReads
from stepwell.errors import CommitUnknown, StoreUnavailable
from stepwell.fault_points import fault, fault_after_commit
from stepwell.model.commit import Commit, Outcome, Unit, Written
from stepwell.model.limits import Limits
from stepwell.process import process_id
from stepwell.stores.sql_files import read_queries
from stepwell.stores.sqlite.connection import Database, SqliteSettings, journal_mode, parse_url, translate
from stepwell.stores.sqlite.fast_path import are_steps, statement_of, step_row
from stepwell.stores.sqlite.listener import POLL_SECONDS, data_version, start_listener
from stepwell.stores.sqlite.reads import SqliteReads
from stepwell.stores.sqlite.transaction import SqliteTransaction

__all__ = ["SQLiteStore"]

T = TypeVar("T")
SQL = read_queries("stepwell.stores.sqlite")
_WRITTEN = Written()
_MOST_READERS = 8
_HAS_VIEWS = journal_mode(apsw.sqlite_lib_version()) == "wal"
"""Without a write-ahead log, a reader that does not end keeps every writer waiting."""


class SQLiteStore(SqliteReads):
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
        return Capabilities(is_shared=True, has_blocking_writes=True, has_consistent_view=_HAS_VIEWS)

    def durability(self) -> Durability:
        level = "full" if self._settings.synchronous == "FULL" else "normal"
        return Durability(level, f"SQLite synchronous={self._settings.synchronous}")

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def check(self) -> None:
        self._rows("probe")

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

    def _check_absence(self) -> None:
        if self._has_stray:
            self._overwrite_stray()
        if self._has_stray:
            raise StoreUnavailable("the disk failed under a commit, so the answer is unknown until it works again; ask then")

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
        if db.is_in_transaction():
            # An error came between the reads of one moment, and the end of the transaction failed, too. The next reader of this
            # connection would see the file as it was then, for ever.
            db.close()
            return
        self._readers.append(db)
        if self._is_closed or len(self._readers) > _MOST_READERS:
            self._close_readers(0 if self._is_closed else _MOST_READERS)

    def _close_readers(self, kept: int) -> None:
        while len(self._readers) > kept:
            try:
                self._readers.pop().close()
            except IndexError:
                return

    def consistent_view(self) -> AbstractContextManager[StoreReads]:
        return self._consistent_view() if _HAS_VIEWS else nullcontext(self)

    @contextmanager
    def _consistent_view(self) -> Generator[StoreReads]:
        self._check_usable()
        db = Database(self._settings, is_writer=False, vfs=self._vfs)
        try:
            db.rows("BEGIN")
            view = _View(db, self._settings, self._clock)
            view.totals("")  # the view is that of the first read
            yield view
        finally:
            db.close()


class _View(SqliteReads):
    """Reads on a connection of its own, in one transaction."""

    def __init__(self, db: Database, settings: SqliteSettings, clock: Clock) -> None:
        self._db, self._settings, self._clock = db, settings, clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def _read(self, query: Callable[[Database], T]) -> T:
        try:
            return query(self._db)
        except apsw.Error as error:
            raise translate(error, self._settings) from error
