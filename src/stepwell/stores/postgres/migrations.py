"""Migrations: bring a schema up to date, once, under a lock, and safe to be killed anywhere.

``NNNN_name.sql`` runs in one transaction that records it last: it is applied whole or not at all. ``NNNN_name.post.sql`` runs
after all such parts, statement by statement outside a transaction, for changes that PostgreSQL makes beside running work
(``CREATE INDEX CONCURRENTLY IF NOT EXISTS``). It is recorded at its end, and runs again if it was interrupted, after the
half-built indexes of a killed run are dropped, which ``IF NOT EXISTS`` would take for complete ones. Neither part may break the
version before it, whose processes still run. A file that was released is never edited: its digest is recorded.

The lock is a transaction's, held by a second connection, so it needs no session of its own and ends with its process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import resources
from typing import Any, cast

import msgspec
import psycopg
from psycopg import sql

from stepwell.errors import StoreForeign, StoreNewer, StoreUnavailable
from stepwell.stores.postgres.connection import CONNECTION_FAILURE, LOST_RACE, Database, error_for
from stepwell.stores.postgres.connection_pool import connect_database
from stepwell.stores.postgres.statements import in_schema
from stepwell.stores.postgres.url import PostgresSettings
from stepwell.stores.sql_files import read_queries

__all__ = ["MIGRATIONS", "Migration", "migrate"]

_SQL = read_queries("stepwell.stores.postgres", "migrations.sql")
_TRIES = 5
_LOCK_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_STATEMENT_END = re.compile(r";\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_BODY = re.compile(r"\$\$.*?\$\$", re.DOTALL)
_BODY_PLACE = re.compile(r"\$\$")

# The tables with workspaces' rows; "locks" among them, which has no policy, so that only the owner sees it.
_GUARDED = (
    *("executions", "commits", "snapshots", "state_scopes", "state_entries", "state_counts", "locks"),
    *("items", "workspaces", "tiers", "queues"),
)


class Migration(msgspec.Struct, frozen=True):
    """A numbered change of the schema."""

    number: int
    name: str
    pre: str
    post: str = ""

    @property
    def digest(self) -> str:
        """Return a digest of the files, which is recorded so that an edited migration is noticed."""
        return sha256(f"{self.pre}\0{self.post}".encode()).hexdigest()


class _Found(msgspec.Struct):
    """The migrations that a schema has."""

    digests: dict[int, str]
    done: set[int]
    """The migrations whose post part is complete, too."""


def _read_migrations() -> list[Migration]:
    folder = resources.files("stepwell.stores.postgres").joinpath("schema")
    files = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    names = sorted(name.removesuffix(".sql") for name in files if name.endswith(".sql") and not name.endswith(".post.sql"))
    return [Migration(int(name.split("_")[0]), name, files[f"{name}.sql"], files.get(f"{name}.post.sql", "")) for name in names]


MIGRATIONS = _read_migrations()


def migrate(database: Database, settings: PostgresSettings, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the schema up to date. Raises for a schema that is newer or belongs to another program."""
    for left in reversed(range(_TRIES)):
        try:
            if not _is_ready(database, settings, migrations):
                with _locked(settings):
                    _run_pre_parts(database, settings, migrations)
                    _run_post_parts(database, settings, migrations)
            _check_visible(database, settings)
            return
        except psycopg.Error as error:
            if error.sqlstate not in LOST_RACE or not left:
                words = " ".join(str(error).split())
                raise error_for(error.sqlstate or CONNECTION_FAILURE, words, settings) from error


def _is_ready(database: Database, settings: PostgresSettings, migrations: Sequence[Migration]) -> bool:
    found = _look(database, settings, migrations)
    if found is None or not all(migration.number in found.done for migration in migrations):
        return False
    return settings.has_row_security in (None, _has_row_security(database, settings))


def _look(database: Database, settings: PostgresSettings, migrations: Sequence[Migration]) -> _Found | None:
    """Return the schema's migrations; None if it is new. Raises for a schema that is newer or belongs to another program."""
    [(has_record, tables)] = _run(database, settings, "look", settings.schema)
    if not has_record:
        if tables:
            raise StoreForeign(f"{settings.place}: the schema has tables of another program; name another with ?schema=...")
        return None
    rows = _run(database, settings, "recorded")
    found = _Found({number: digest for number, digest, _ in rows}, {number for number, _, is_done in rows if is_done})
    _check_known(found, settings, migrations)
    return found


def _check_known(found: _Found, settings: PostgresSettings, migrations: Sequence[Migration]) -> None:
    known = {migration.number: migration.digest for migration in migrations}
    for number, digest in found.digests.items():
        if known.get(number, digest) != digest:
            raise StoreForeign(
                f"{settings.place}: migration {number} is not the one of this Stepwell; the schema was made by another program or "
                "an unreleased version. Nothing was changed in it: back it up with that version, and restore the backup into "
                "another schema, ?schema=..."
            )
    newest, ours = max(found.digests, default=0), max(known)
    if newest > ours:
        raise StoreNewer(f"{settings.place}: the schema is at {newest} and this Stepwell knows up to {ours}; upgrade Stepwell")


@contextmanager
def _locked(settings: PostgresSettings) -> Generator[None]:
    """Hold the lock of all schemas of the database: indexes that are built concurrently wait for each other.

    The lock is polled, never waited for inside a statement: that would hold a snapshot, for which the other process's index build
    waits. For the same reason the isolation level is the one that drops its snapshot after each statement.
    """
    guard = connect_database(settings)
    guard.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            with guard.transaction():
                [(is_ours,)] = _run(guard, settings, "lock_migrations")
                if is_ours:
                    yield
                    return
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{settings.place}: another process has been migrating for {_LOCK_SECONDS:g} s; try again later"
                )
            time.sleep(_LOOK_SECONDS)
    finally:
        guard.close()


def _run_pre_parts(database: Database, settings: PostgresSettings, migrations: Sequence[Migration]) -> None:
    found = _look(database, settings, migrations)
    if found is None:
        with database.transaction():
            [(is_there,)] = _run(database, settings, "has_schema", settings.schema)
            if not is_there:
                _run(database, settings, "create_schema")
            _run(database, settings, "create_record")
    for migration in migrations:
        if found is None or migration.number not in found.digests:
            with database.transaction():
                _run(database, settings, "set_bounds")
                for statement in _statements(migration.pre):
                    _execute(database, in_schema(statement, settings.schema))
                _run(database, settings, "record", migration.number, migration.name, migration.digest, not migration.post)


def _run_post_parts(database: Database, settings: PostgresSettings, migrations: Sequence[Migration]) -> None:
    found = _look(database, settings, migrations)
    for migration in migrations:
        if found is not None and migration.number not in found.done:
            for (name,) in _run(database, settings, "half_built", settings.schema):
                _execute(database, in_schema("DROP INDEX CONCURRENTLY {schema}.", settings.schema) + _quoted(name))
            for statement in _statements(migration.post):
                _execute(database, in_schema(statement, settings.schema))
            _run(database, settings, "record_post", migration.number)
    present = _has_row_security(database, settings)
    if settings.has_row_security not in (None, present):
        _switch_row_security(database, settings, is_on=settings.has_row_security is True)
    elif present is None:  # tables of a later migration get the same guard as earlier ones
        _switch_row_security(database, settings, is_on=True)


def _switch_row_security(database: Database, settings: PostgresSettings, *, is_on: bool) -> None:
    verb = "ENABLE" if is_on else "DISABLE"
    with database.transaction():
        _run(database, settings, "set_bounds")
        for table in _GUARDED:
            _execute(database, in_schema("ALTER TABLE {schema}.", settings.schema) + f"{table} {verb} ROW LEVEL SECURITY")


def _has_row_security(database: Database, settings: PostgresSettings) -> object:
    [(is_on,)] = _run(database, settings, "has_row_security", settings.schema, list(_GUARDED))
    return is_on


def _check_visible(database: Database, settings: PostgresSettings) -> None:
    """Raise if row-level security hides rows from the engine: it would take an execution that it cannot see for a missing one."""
    [(is_restricted,)] = _run(database, settings, "is_restricted", settings.schema)
    if is_restricted:
        raise StoreUnavailable(
            f"{settings.place}: row-level security hides rows from user {settings.user!r}; connect as the tables' owner, or as a "
            "role with BYPASSRLS"
        )


def _statements(script: str) -> list[str]:
    """Return the statements of a script. Each ends with a semicolon at the end of a line outside a function's body."""
    bodies = _BODY.findall(script)
    parts = (part.strip() for part in _STATEMENT_END.split(_COMMENT.sub("", _BODY.sub("$$", script))))
    left = iter(bodies)
    return [_BODY_PLACE.sub(lambda _: next(left), part) for part in parts if part]


def _run(database: Database, settings: PostgresSettings, name: str, *arguments: object) -> list[tuple[Any, ...]]:
    cursor = database.execute(cast(Any, in_schema(_SQL[name], settings.schema)), arguments or None)
    return cursor.fetchall() if cursor.description else []


def _execute(database: Database, statement: str) -> None:
    database.execute(cast(Any, statement))


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)
