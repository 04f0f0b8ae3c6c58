"""Connections to SQLite files: check that a file is ours, set it up, run statements, and translate SQLite's errors to ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import apsw
import msgspec

from stepwell.duration import written_seconds
from stepwell.errors import (
    Corrupted,
    InvalidInput,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreUnavailable,
)
from stepwell.stores.sql_files import read_schema
from stepwell.stores.sqlite.fast_path import statement_of

__all__ = [
    "SCHEMA_VERSION",
    "Database",
    "SqliteSettings",
    "Statements",
    "journal_mode",
    "parse_url",
    "translate",
]


class Statements:
    """Named statements of one transaction, which all have the same time."""

    def __init__(self, db: Database, sql: Mapping[str, str], now_ms: int) -> None:
        self.db, self._sql, self.now_ms = db, sql, now_ms

    def run(self, name: str, *arguments: object) -> int:
        """Run a statement, and return the number of changed rows."""
        return self.db.run(self._sql[name], *arguments)

    def run_all(self, name: str, rows: list[tuple[object, ...]]) -> bool:
        """Run a statement on many rows, whole or not at all; return whether it was done."""
        return self.db.run_all(*statement_of(self._sql[name], rows))

    def rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        return self.db.rows(self._sql[name], *arguments)


log = logging.getLogger(__name__)

# "Swel" in ASCII, in the file's header, so that Stepwell never writes into another program's database.
APPLICATION_ID = 0x5377656C

# A checkpoint comes about every 285 commits and takes 0.7 ms: 2 µs for each. Four times the pages would save one of these two;
# but the log file would take four times as long to reach its size after each opening, and while it grows, a commit takes twice as
# long.
_CHECKPOINT_PAGES = 1000

_SCHEMA = read_schema("stepwell.stores.sqlite")
SCHEMA_VERSION = _SCHEMA[-1][0]


@cache
def _digest(script: str) -> str:
    """Return the digest of a script, which is recorded so that a file made by an edited one is noticed."""
    return sha256(script.encode()).hexdigest()


class SqliteSettings(msgspec.Struct, frozen=True):
    """Settings of a ``sqlite:`` URL."""

    path: str
    synchronous: str = "FULL"
    busy_seconds: float = 10.0


def parse_url(url: str) -> SqliteSettings:
    """Return the settings in ``sqlite:///relative`` or ``sqlite:////absolute``, with ``?synchronous=`` and ``?busy_seconds=``."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
        raise InvalidInput(f"{url!r} names no file; write sqlite:///relative/path.db or sqlite:////absolute/path.db")
    options = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    unknown = options.keys() - {"synchronous", "busy_seconds"}
    if unknown:
        raise InvalidInput(f"a sqlite URL takes synchronous and busy_seconds, not {', '.join(sorted(unknown))}")
    synchronous = options.get("synchronous", "FULL").upper()
    if synchronous not in ("FULL", "NORMAL"):
        raise InvalidInput(f"synchronous is FULL or NORMAL, not {synchronous!r}")
    busy = written_seconds(options.get("busy_seconds", "10"), "busy_seconds", most=3600)
    path = unquote(parts.path[1:])
    if path == ":memory:" or "\0" in path:
        raise InvalidInput(f"{path!r} is no path of a file; for a store in memory use memory://")
    return SqliteSettings(path, synchronous, busy)


def journal_mode(version: str) -> str:
    """Return the journal mode: WAL, unless this SQLite can lose committed WAL data when two connections write and checkpoint.

    That is every version from 3.7.0 until the fix in 3.51.3, and the withdrawn 3.52 (sqlite.org/wal.html#walresetbug).
    """
    numbers = tuple(int(part) for part in version.split(".")[:3])
    is_safe = numbers >= (3, 51, 3) and numbers[:2] != (3, 52)
    return "wal" if is_safe else "truncate"


class Database:
    """A connection to a file of Stepwell or a new one, set up as this store needs it."""

    def __init__(self, settings: SqliteSettings, *, is_writer: bool, vfs: str | None = None) -> None:
        self._settings = settings
        folder = Path(settings.path).parent
        if not folder.is_dir():
            raise StoreUnavailable(f"the folder {str(folder)!r} does not exist; create it, or correct the URL")
        try:
            # apsw's stubs name types that Python 3.11 lacks; this is the one place that knows it is apsw.
            self._connection: Any = apsw.Connection(settings.path, vfs=vfs)
        except apsw.Error as error:
            raise translate(error, settings) from error
        self._cursor: Any = self._connection.cursor()
        try:
            self._set_up(is_writer)
        except BaseException as error:
            self.close()
            if isinstance(error, apsw.Error):
                raise translate(error, settings) from error
            raise

    def rows(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a statement to its end, and return its rows."""
        try:
            return self._cursor.execute(sql, arguments).fetchall()
        except UnicodeDecodeError as error:
            # Columns of text hold what was UTF-8 when it was written.
            raise Corrupted(f"{self._settings.path!r}: the file is damaged; restore it from a backup ({error})") from None

    def run(self, sql: str, *arguments: object) -> int:
        """Run a statement, and return the number of changed rows."""
        self._cursor.execute(sql, arguments)
        return self._connection.changes()

    def run_many(self, sql: str, rows: list[tuple[object, ...]]) -> int:
        """Run a statement once for each row of arguments; return the total number of changed rows."""
        before = self._connection.total_changes()
        self._cursor.executemany(sql, rows)
        return self._connection.total_changes() - before

    def run_all(self, sql: str, arguments: list[object]) -> bool:
        """Run a statement that fails unless all of it can be done; return whether it was done."""
        try:
            self._cursor.execute(sql, arguments)
        except apsw.ConstraintError as error:
            if getattr(error, "extendedresult", 0) not in (apsw.SQLITE_CONSTRAINT_TRIGGER, apsw.SQLITE_CONSTRAINT_UNIQUE):
                raise
            return False
        return True

    def value(self, sql: str) -> Any:
        """Return the single value of a statement."""
        return self._cursor.execute(sql).fetchall()[0][0]

    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return self._connection.in_transaction

    def close(self) -> None:
        """Close the connection, in any state."""
        self._connection.close(True)

    def migrate(self) -> None:
        """Run the schema scripts that the file lacks, in one transaction that bumps the version last.

        After an error the transaction may still be open; the caller closes the connection, which rolls it back.
        """
        try:
            if self.value("PRAGMA user_version") != SCHEMA_VERSION:
                self._run_scripts()
        except apsw.Error as error:
            raise translate(error, self._settings) from error

    def _run_scripts(self) -> None:
        self.rows("BEGIN IMMEDIATE")
        version: int = self.value("PRAGMA user_version")
        for number, script in _SCHEMA:
            if number > version:
                self.rows(script)
                self.rows("INSERT INTO migrations (number, digest) VALUES (?, ?)", number, _digest(script))
        self.rows(f"PRAGMA application_id = {APPLICATION_ID}")
        self.rows(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self.rows("COMMIT")

    def _set_up(self, is_writer: bool) -> None:
        settings = self._settings
        self._connection.set_busy_timeout(round(settings.busy_seconds * 1000))
        # The last connection that closes a database writes its log back into the file; Stepwell must not do that to another
        # program's.
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._check_ours()
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        if is_writer:
            self._set_journal()
            self.rows(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            # On macOS, fsync leaves data in the drive's cache; these ask the drive to write it out. Elsewhere they change nothing.
            self.rows("PRAGMA fullfsync = ON")
            self.rows("PRAGMA checkpoint_fullfsync = ON")
        else:
            self.rows("PRAGMA query_only = ON")
        self.rows(f"PRAGMA synchronous = {settings.synchronous}")
        self.rows("PRAGMA mmap_size = 0")

    def _check_ours(self) -> None:
        # In one transaction: another process may be setting the file up between two statements.
        self.rows("BEGIN")
        application, version = self.value("PRAGMA application_id"), self.value("PRAGMA user_version")
        tables = self.rows("SELECT name FROM sqlite_schema")
        has_record = application == APPLICATION_ID and ("migrations",) in tables
        digests = dict(self.rows("SELECT number, digest FROM migrations")) if has_record else {}
        self.rows("COMMIT")
        if application == APPLICATION_ID:
            self._check_known(version, digests)
        elif application != 0 or tables:
            raise StoreForeign(f"{self._settings.path!r} is a database of another program; nothing was written to it")

    def _check_known(self, version: int, digests: dict[int, str]) -> None:
        path = self._settings.path
        for number, script in _SCHEMA:
            if number <= version and digests.get(number) != _digest(script):
                raise StoreForeign(
                    f"{path!r}: migration {number} is not the one of this Stepwell; the file was made by an unreleased version. "
                    "Nothing was written to it: back it up with that version, and restore the backup into a new file"
                )
        if version > SCHEMA_VERSION:
            raise StoreNewer(f"{path!r} has schema {version}; this Stepwell knows up to {SCHEMA_VERSION}: upgrade Stepwell")

    def _set_journal(self) -> None:
        mode = journal_mode(apsw.sqlite_lib_version())
        if mode != "wal":
            log.warning("SQLite %s may lose data in WAL mode; using journal_mode=%s", apsw.sqlite_lib_version(), mode)
        # Switching a new file to WAL needs exclusive access, for which SQLite does not wait; another process may be doing it.
        deadline = time.monotonic() + self._settings.busy_seconds
        while True:
            try:
                self.rows(f"PRAGMA journal_mode = {mode}")
                return
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


# The Stepwell error for each of SQLite's errors, with what to do about it.
_ERRORS: tuple[tuple[type[apsw.Error], type[StoreUnavailable], str], ...] = (
    (apsw.BusyError, StoreUnavailable, "another process has been writing for longer than busy_seconds; try again"),
    (apsw.LockedError, StoreUnavailable, "the database is locked; try again"),
    (apsw.FullError, StoreFull, "the disk is full; free some space and try again"),
    (apsw.NotADBError, StoreForeign, "the file is no SQLite database; nothing was written to it"),
    (apsw.CorruptError, Corrupted, "the file is damaged; restore it from a backup"),
    (apsw.ReadOnlyError, StoreUnavailable, "the file cannot be written; check its permissions"),
    (apsw.CantOpenError, StoreUnavailable, "the file cannot be opened; check the path and its permissions"),
    (apsw.PermissionsError, StoreUnavailable, "the file cannot be opened; check its permissions"),
    (apsw.IOError, StoreUnavailable, "the disk gave an error; check it, then try again"),
)


def translate(error: apsw.Error, settings: SqliteSettings) -> StoreUnavailable:
    """Return the Stepwell error for one of SQLite's."""
    for kind, ours, advice in _ERRORS:
        if isinstance(error, kind):
            return ours(f"{settings.path!r}: {advice} ({error})")
    return StoreUnavailable(f"{settings.path!r}: SQLite refused the statement ({type(error).__name__}: {error})")
