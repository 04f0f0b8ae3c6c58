"""Opening SQLite files: which are ours, how they are set up, and what its errors mean in our words."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import apsw
import msgspec

from stepwell.errors import (
    Corrupted,
    InvalidInput,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreUnavailable,
)
from stepwell.stores.sql import read_schema

__all__ = ["SCHEMA_VERSION", "Settings", "connect", "journal_mode", "migrate", "parse_url", "translated"]

log = logging.getLogger(__name__)

# "Swel" in ASCII; stands in the file's header, so that we never write into somebody else's database.
APPLICATION_ID = 0x5377656C

_SCHEMA = read_schema("stepwell.stores.sqlite")
SCHEMA_VERSION = _SCHEMA[-1][0]


class Settings(msgspec.Struct, frozen=True):
    """What a ``sqlite:`` URL says."""

    path: str
    synchronous: str = "FULL"
    busy_seconds: float = 10.0


def parse_url(url: str) -> Settings:
    """The settings in ``sqlite:///relative/path`` or ``sqlite:////absolute/path``, with ``?synchronous=`` and ``?busy_seconds=``."""
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
    try:
        busy = float(options.get("busy_seconds", "10"))
    except ValueError:
        busy = -1.0
    if not 0 <= busy <= 3600:
        raise InvalidInput("busy_seconds is a number from 0 to 3600")
    return Settings(unquote(parts.path[1:]), synchronous, busy)


def journal_mode(version: str) -> str:
    """WAL, unless this SQLite can lose committed WAL data when two connections write and checkpoint.

    That is every version from 3.7.0 until the fix in 3.51.3, and the withdrawn 3.52 (sqlite.org/wal.html#walresetbug).
    """
    numbers = tuple(int(part) for part in version.split(".")[:3])
    is_safe = numbers >= (3, 51, 3) and numbers[:2] != (3, 52)
    return "wal" if is_safe else "truncate"


def connect(settings: Settings, *, is_writer: bool, vfs: str | None = None) -> apsw.Connection:
    """A connection to a file that is ours or new; nothing is written to any other."""
    path = Path(settings.path)
    if not path.parent.is_dir():
        raise StoreUnavailable(f"the folder {str(path.parent)!r} does not exist; create it, or correct the URL")
    with translated(settings):
        connection = apsw.Connection(settings.path, vfs=vfs)
    try:
        with translated(settings):
            connection.set_busy_timeout(round(settings.busy_seconds * 1000))
            _check_ours(connection, settings)
            if is_writer:
                _set_journal(connection, settings)
            connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
            connection.execute("PRAGMA mmap_size = 0").fetchall()
            if not is_writer:
                connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_ours(connection: apsw.Connection, settings: Settings) -> None:
    application: int = connection.execute("PRAGMA application_id").get
    version: int = connection.execute("PRAGMA user_version").get
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise StoreNewer(
                f"{settings.path!r} has schema {version} and this Stepwell knows up to {SCHEMA_VERSION}; upgrade Stepwell"
            )
        return
    if application != 0 or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise StoreForeign(f"{settings.path!r} is a database of another program; nothing was written to it")


def _set_journal(connection: apsw.Connection, settings: Settings) -> None:
    mode = journal_mode(apsw.sqlite_lib_version())
    if mode != "wal":
        log.warning("SQLite %s may lose data in WAL mode; using journal_mode=%s", apsw.sqlite_lib_version(), mode)
    # Turning a new file to WAL needs the file for itself, and SQLite does not wait for that; another process may be at it.
    deadline = time.monotonic() + settings.busy_seconds
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def migrate(connection: apsw.Connection, settings: Settings) -> None:
    """Run the schema scripts that the file lacks, in one transaction that bumps the version last."""
    if connection.execute("PRAGMA user_version").get == SCHEMA_VERSION:
        return
    with translated(settings):
        connection.execute("BEGIN IMMEDIATE")
        try:
            version: int = connection.execute("PRAGMA user_version").get
            for number, script in _SCHEMA:
                if number > version:
                    connection.execute(script).fetchall()
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


@contextmanager
def translated(settings: Settings) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, settings) from error


# Which of our errors each of SQLite's is, and what to do about it.
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


def translate(error: apsw.Error, settings: Settings) -> StoreUnavailable:
    """The Stepwell error for one of SQLite's."""
    for kind, ours, advice in _ERRORS:
        if isinstance(error, kind):
            return ours(f"{settings.path!r}: {advice} ({error})")
    return StoreUnavailable(f"{settings.path!r}: SQLite refused the statement ({type(error).__name__}: {error})")
