"""What the server's error codes mean in our words. Codes only: messages change with the server's language and version."""

from __future__ import annotations

from stepwell.errors import Corrupted, StoreForeign, StoreFull, StoreUnavailable
from stepwell.stores.postgres.settings import PostgresSettings

__all__ = ["CONNECTION_FAILURE", "LOST_RACE", "READ_ONLY", "error_for"]

CONNECTION_FAILURE = "08006"
READ_ONLY = "25006"

LOST_RACE = frozenset({"40001", "40P01", "55P03", "23505"})
"""Another transaction was in the way: the whole of ours is tried again, with a new look at everything.

A unique violation is one of them: somebody else added the row after we had looked, and the second look finds it there.
"""

_BUSY = "other writers were in the way too often; try again, or look for long transactions in pg_stat_activity"
_SHUT = "the server is shutting down or starting up; try again in a moment"
_PREPARE = "a prepared statement got lost; behind a PgBouncer in transaction mode add ?prepare=off to the URL"
_MISSING = "tables are missing; open the store again to create them, or restore them from a backup"

# By the whole code first, then by its class, the first two characters.
_ERRORS: dict[str, tuple[type[StoreUnavailable], str]] = {
    "08": (StoreUnavailable, "the connection was lost; check that the server runs and that the network reaches it, then try again"),
    "0A": (StoreUnavailable, "the server lacks a feature; use PostgreSQL 14 or newer"),
    "22": (StoreUnavailable, "the server refused a value"),
    "23505": (StoreUnavailable, _BUSY),
    "25006": (StoreUnavailable, "the server is a read-only replica; point the URL at the primary"),
    "25P03": (StoreUnavailable, "the transaction stood still for too long and the server ended it; try again"),
    "26000": (StoreUnavailable, _PREPARE),
    "28": (StoreUnavailable, "the server refuses user {user!r}; check the user, pg_hba.conf and the rights of the role"),
    "28P01": (StoreUnavailable, "the password for user {user!r} is wrong; correct it in the URL"),
    "3D000": (StoreUnavailable, "there is no database {database!r}; create it with CREATE DATABASE, or correct the URL"),
    "3F000": (StoreUnavailable, _MISSING),
    "40001": (StoreUnavailable, _BUSY),
    "40P01": (StoreUnavailable, _BUSY),
    "42501": (StoreUnavailable, "user {user!r} lacks a right that the store needs; grant it, or connect as the tables' owner"),
    "42703": (StoreForeign, "a table has other columns than ours; name another schema with ?schema=..."),
    "42P01": (StoreUnavailable, _MISSING),
    "42P05": (StoreUnavailable, _PREPARE),
    "53": (StoreUnavailable, "the server is short of a resource; see its log"),
    "53100": (StoreFull, "the server's disk is full; free some space and try again"),
    "53300": (
        StoreUnavailable,
        "the server has no connection left; raise max_connections or the role's limit, or lower ?pool_size",
    ),
    "54": (StoreUnavailable, "the statement is over one of the server's own limits"),
    "55P03": (StoreUnavailable, _BUSY),
    "57014": (StoreUnavailable, "the server cancelled the statement, as its statement_timeout says; try again"),
    "57P": (StoreUnavailable, _SHUT),
    "58": (StoreUnavailable, "the server's system gave an error; see its log"),
    "XX001": (Corrupted, "the server found damaged data; restore it from a backup"),
    "XX002": (Corrupted, "the server found a damaged index; run REINDEX, or restore it from a backup"),
}


def error_for(sqlstate: str, words: str, settings: PostgresSettings) -> StoreUnavailable:
    """The Stepwell error for a code of the server: the part, what to do about it, and the server's own words."""
    for length in (5, 3, 2):
        if sqlstate[:length] in _ERRORS:
            kind, advice = _ERRORS[sqlstate[:length]]
            return kind(f"{settings.place}: {advice.format(user=settings.user, database=settings.database)} ({sqlstate}: {words})")
    return StoreUnavailable(f"{settings.place}: the server refused the statement ({sqlstate}: {words})")
